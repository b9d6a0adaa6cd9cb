"""``so.metrics``: how good a model or a clustering is."""

from solera.evaluation.scores import Scores
from solera.learn.cluster.agreement import adjusted_rand, jaccard
from solera.learn.evaluation import Evaluation, evaluate
from solera.learn.row_metrics import row_metric
from solera.learn.scores import ScoreGrid

__all__ = [
    "Evaluation",
    "ScoreGrid",
    "Scores",
    "adjusted_rand",
    "evaluate",
    "jaccard",
    "row_metric",
]
