"""``so.metrics``: how good a model or a clustering is."""

from solera.evaluation.evaluation import Evaluation
from solera.evaluation.figure import Figure
from solera.evaluation.scores import Scores
from solera.learn.cluster.agreement import adjusted_rand, jaccard
from solera.learn.evaluation import evaluate
from solera.learn.row_metrics import row_metric
from solera.learn.scores import ScoreGrid

__all__ = [
    "Evaluation",
    "Figure",
    "ScoreGrid",
    "Scores",
    "adjusted_rand",
    "evaluate",
    "jaccard",
    "row_metric",
]
