"""``so.aggregations``: how replies become one. Each is a monoid; see :class:`Aggregation`."""

from solera.core.aggregation import (
    Aggregation,
    ByFold,
    Collect,
    Extremes,
    Fields,
    Mean,
    Sum,
    Union,
)

__all__ = ["Aggregation", "ByFold", "Collect", "Extremes", "Fields", "Mean", "Sum", "Union"]
