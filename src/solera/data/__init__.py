"""``so.data``: rows and who holds them."""

from solera.core.schema import Feature, Schema
from solera.data.adapters import from_huggingface, from_pandas, from_torch
from solera.data.agreement import agree
from solera.data.arff import label_names
from solera.data.client_files import from_files, from_loader
from solera.data.dataset import Dataset, holdout
from solera.data.federated import FederatedData
from solera.data.lazy import LazyData
from solera.data.multilabel import LabelData, deal_labels
from solera.data.own_tables import read_table
from solera.data.stored import StoredData

__all__ = [
    "Dataset",
    "Feature",
    "FederatedData",
    "LabelData",
    "LazyData",
    "Schema",
    "StoredData",
    "agree",
    "deal_labels",
    "from_files",
    "from_huggingface",
    "from_loader",
    "from_pandas",
    "from_torch",
    "holdout",
    "label_names",
    "read_table",
]
