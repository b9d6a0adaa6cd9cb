"""From energy to emissions, and the energy counters that CodeCarbon knows how to read.

C = E · CI with the carbon intensity CI of a country's electricity (FedHEONN thesis, eq. 3.5).
"""

from __future__ import annotations

import json
import os
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

from solera.core.errors import MissingExtra, UsageError

WORLD = "WORLD"
KNOWN = {WORLD: 475.0, "ESP": 217.4}
"""g CO₂e per kWh: the world's mean (IEA 2019), and Spain's in the FedHEONN thesis."""


def intensity(country: str) -> float:
    """g CO₂e per kWh of a country, by its ISO code of three letters; ``"WORLD"`` is the mean.

    With the extra ``green`` it is CodeCarbon's figure, which covers all countries.
    """
    if country != WORLD and installed():
        table = _mixes()
        if country in table:
            return float(table[country]["carbon_intensity"])
        raise UsageError(
            f"CodeCarbon knows no country {country!r}", hint="give the ISO code, for example 'ESP'"
        )
    if country in KNOWN:
        return KNOWN[country]
    raise MissingExtra.of(f"the carbon intensity of {country!r}", "green")


def installed() -> bool:
    """Whether CodeCarbon is there."""
    return find_spec("codecarbon") is not None


def counters() -> bool:
    """Whether this machine counts its energy where CodeCarbon can read it: RAPL or a GPU."""
    readings = Path("/sys/class/powercap").glob("*/energy_uj")
    return any(os.access(path, os.R_OK) for path in readings) or which("nvidia-smi") is not None


@cache
def _mixes() -> Any:
    source = files("codecarbon") / "data" / "private_infra" / "global_energy_mix.json"
    return json.loads(source.read_text(encoding="utf-8"))


@cache
def tracker(country: str) -> Any:
    """CodeCarbon's offline tracker, one per process and country: it takes seconds to start.

    Only its kWh are used; emissions follow from :func:`intensity`.
    """
    if not installed():
        raise MissingExtra.of("source = 'codecarbon'", "green")
    import logging

    from codecarbon import OfflineEmissionsTracker

    logging.getLogger("codecarbon").setLevel(logging.CRITICAL)
    return OfflineEmissionsTracker(
        country_iso_code="ESP" if country == WORLD else country,  # it must have one
        output_methods=[],
        log_level="critical",
        measure_power_secs=10,
        allow_multiple_runs=True,
    )
