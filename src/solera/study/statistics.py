"""The statistics of studies, which pages of a coordinator show too; see the module they are in."""

from solera.core.statistics import (
    FriedmanResult,
    Interval,
    Pair,
    bootstrap_interval,
    friedman,
    holm,
    nemenyi,
    rank,
    rank_biserial,
    t_interval,
    wilcoxon_holm,
)

__all__ = [
    "FriedmanResult",
    "Interval",
    "Pair",
    "bootstrap_interval",
    "friedman",
    "holm",
    "nemenyi",
    "rank",
    "rank_biserial",
    "t_interval",
    "wilcoxon_holm",
]
