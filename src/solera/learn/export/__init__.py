"""Models leave: as ONNX graphs, and as estimators of scikit-learn."""

from solera.learn.export import heonn, linear, networks, preprocess, trees
from solera.learn.export.model import export, onnx_inputs
from solera.learn.export.to_sklearn import to_sklearn

__all__ = [
    "export",
    "heonn",
    "linear",
    "networks",
    "onnx_inputs",
    "preprocess",
    "to_sklearn",
    "trees",
]
