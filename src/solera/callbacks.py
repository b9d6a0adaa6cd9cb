"""``so.callbacks``: what watches the rounds of a fit, stops it or writes it down elsewhere."""

from solera.core.rounds import Callback, Round
from solera.evaluation.stopping import EarlyStopping, StopAt
from solera.green.energy import EnergyBudget
from solera.learn.evaluation import Evaluate
from solera.study.exporters import MLflow, TensorBoard

__all__ = [
    "Callback",
    "EarlyStopping",
    "EnergyBudget",
    "Evaluate",
    "MLflow",
    "Round",
    "StopAt",
    "TensorBoard",
]
