"""``so.metrics``: how good a model or a clustering is."""

from solera.learn.cluster.agreement import adjusted_rand, jaccard
from solera.learn.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "adjusted_rand", "evaluate", "jaccard"]
