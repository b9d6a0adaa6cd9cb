"""How large a benchmark runs: as its claim says or, with ``--tiny``, only to see that it works.

Every benchmark takes ``--tiny`` before or after its other arguments. It then measures nothing worth
printing, but runs the same code on data that come with scikit-learn, within seconds; the test suite
starts each of them so.
"""

from __future__ import annotations

import sys
from typing import TypeVar

T = TypeVar("T")

TINY = "--tiny" in sys.argv[1:]
if TINY:
    sys.argv.remove("--tiny")


def sized(full: T, tiny: T) -> T:
    """A size as the claim says, or the tiny one."""
    return tiny if TINY else full
