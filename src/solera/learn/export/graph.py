"""An ONNX graph in the making."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from solera.core.errors import MissingExtra

OPSET, ML_OPSET, IR_VERSION = 21, 4, 10
"""Versions of ONNX's operators and of its file, as runtimes since 2024 read them."""
ML = "ai.onnx.ml"


def onnx() -> Any:
    """The package ``onnx``, or an error that says how to install it."""
    try:
        import onnx
    except ImportError:
        raise MissingExtra.of("export to ONNX", "onnx") from None
    return onnx


class Graph:
    """Nodes and constants in order; calling it adds a node and gives the name of its output."""

    def __init__(self, around: Graph | None = None) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = [] if around is None else around.constants
        self._names: list[str] = [] if around is None else around._names

    def __call__(self, operator: str, *inputs: Any, domain: str = "", **attributes: Any) -> str:
        """A node of that operator; an input is the name of a tensor, or an array."""
        names = [given if isinstance(given, str) else self.constant(given) for given in inputs]
        made = self._name(operator)
        node = onnx().helper.make_node(operator, names, [made], domain=domain, **attributes)
        self.nodes.append(node)
        return made

    def constant(self, value: Any) -> str:
        """An array that belongs to the graph."""
        name = self._name("constant")
        array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        if array.dtype.kind == "U":
            array = array.astype(object)
        self.constants.append(onnx().numpy_helper.from_array(array, name))
        return name

    def cast(self, tensor: str, dtype: Any) -> str:
        """The tensor in another type."""
        return self("Cast", tensor, to=element_type(dtype))

    def known(self, tensor: str) -> str:
        """Where values are finite."""
        return self("Not", self("Or", self("IsNaN", tensor), self("IsInf", tensor)))

    def repeat(self, times: int, start: str, dtype: Any, step: Callable[[Graph, str], str]) -> str:
        """``step`` applied so many times to a matrix; it adds nodes to the graph it is given."""
        helper = onnx().helper
        body = Graph(self)
        count, going, state = body._name("count"), body._name("going"), body._name("state")
        ended = step(body, state)
        goes_on = body("Identity", going)
        inside = helper.make_graph(
            body.nodes,
            "step",
            [
                helper.make_tensor_value_info(count, element_type(np.int64), []),
                helper.make_tensor_value_info(going, element_type(np.bool_), []),
                helper.make_tensor_value_info(state, element_type(dtype), [None, None]),
            ],
            [
                helper.make_tensor_value_info(goes_on, element_type(np.bool_), []),
                helper.make_tensor_value_info(ended, element_type(dtype), [None, None]),
            ],
        )
        return self("Loop", np.int64(times), np.bool_(True), start, body=inside)

    def _name(self, what: str) -> str:
        self._names.append(f"/{what}_{len(self._names)}")
        return self._names[-1]


def element_type(dtype: Any) -> int:
    """ONNX's number of a type of NumPy."""
    dtype = np.dtype(dtype)
    if dtype.kind in "UO":
        return int(onnx().TensorProto.STRING)
    return int(onnx().helper.np_dtype_to_tensor_dtype(dtype))
