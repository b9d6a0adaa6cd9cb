"""The experiments behind the errata page: why a row as published is not the thesis's.

One name each, as on the page; without a name, all. ``--program`` is the git directory of an
author's repository: ``clock`` and ``order`` compare with what mayoras/flex-cs printed, ``labels``
with the runs that daviddb11/MLFedAvg stored.

    OMP_NUM_THREADS=1 SOLERA_DATA=… python benchmarks/errata.py clock --program flex-cs/.git
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import errata_labels
import errata_networks
import errata_selection
import errata_tables
from solera.core.errors import DatasetUnavailable

EXPERIMENTS: dict[str, Callable[[Path | None], None]] = {
    "clock": errata_selection.clock,
    "order": errata_selection.order,
    "rows": errata_selection.rows,
    "epochs": errata_networks.epochs,
    "images": errata_networks.images,
    "labels": errata_labels.labels,
    "frequent": errata_labels.frequent,
    "dropout": errata_tables.dropout_rate,
    "beans": errata_tables.beans,
    "tweets": errata_tables.tweets,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--program", type=Path)
    arguments = parser.parse_args()
    for name in {*arguments.names} - {*EXPERIMENTS}:
        parser.error(f"there is no experiment {name!r}: {', '.join(EXPERIMENTS)}")
    for name in arguments.names or EXPERIMENTS:
        print(f"{name}: {(EXPERIMENTS[name].__doc__ or '').splitlines()[0]}")
        try:
            EXPERIMENTS[name](arguments.program)
        except DatasetUnavailable as problem:
            print(f"  not at hand: {problem}")


if __name__ == "__main__":
    main()
