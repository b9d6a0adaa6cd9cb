"""``so.partitions``: who holds which rows of a data set that is dealt to simulated clients."""

from solera.data.partition import IID, ClientWeights, Overlap, Partition, QuantitySkew, Unlabelled
from solera.data.partition_groups import ByCluster, ByGroup, Explicit
from solera.data.partition_labels import Dirichlet, LabelsPerClient, LabelWeights, Shards
from solera.data.vertical import TransferSplit, VerticalSplit

__all__ = [
    "IID",
    "ByCluster",
    "ByGroup",
    "ClientWeights",
    "Dirichlet",
    "Explicit",
    "LabelWeights",
    "LabelsPerClient",
    "Overlap",
    "Partition",
    "QuantitySkew",
    "Shards",
    "TransferSplit",
    "Unlabelled",
    "VerticalSplit",
]
