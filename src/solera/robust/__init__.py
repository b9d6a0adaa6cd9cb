"""``so.robust``: rules for clients that may lie, and attacks to try them with."""

from solera.robust.attacks import (
    ALittleIsEnough,
    Attack,
    Backdoor,
    Broken,
    Gaussian,
    InnerProduct,
    LabelFlip,
    NoisyLabels,
    SignFlip,
)
from solera.robust.buckets import Buckets
from solera.robust.distances import (
    Bulyan,
    CentredClipping,
    GeometricMedian,
    Krum,
    MultiKrum,
    NormBound,
)
from solera.robust.rules import Median, Rule, TrimmedMean, Verdict

__all__ = [
    "ALittleIsEnough",
    "Attack",
    "Backdoor",
    "Broken",
    "Buckets",
    "Bulyan",
    "CentredClipping",
    "Gaussian",
    "GeometricMedian",
    "InnerProduct",
    "Krum",
    "LabelFlip",
    "Median",
    "MultiKrum",
    "NoisyLabels",
    "NormBound",
    "Rule",
    "SignFlip",
    "TrimmedMean",
    "Verdict",
]
