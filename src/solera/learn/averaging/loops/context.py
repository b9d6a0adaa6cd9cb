"""What a loop is told besides its model and its rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.clients import Client, Part
from solera.core.errors import UsageError
from solera.learn.averaging.training.devices import torch

_STATE = "loop"
_PLAIN = (bool, int, float, str, bytes, type(None))


class Context:
    """What ``train``, ``evaluate`` and ``predict`` of :class:`~solera.FedTorch` get as their last
    argument.

    Attributes
    ----------
    client: the number of the client.
    round, rounds: of how many rounds this is which, from 0 on.
    seed: from which PyTorch, NumPy and Python draw here; another one in every round and client.
    device: where the model lies; batches are the loop's own to move.
    config: what ``config=`` says for this round.
    classes: the values of the classes, in the order of their indices.
    state: a table that this client keeps for the fit: tensors, state dicts, numbers and text.
        Set an entry anew to change it.
    """

    def __init__(
        self,
        client: Client | None,
        ask: Mapping[str, Any],
        device: Any,
        loaders: Any = None,
        seed: int = 0,
    ) -> None:
        training = ask["training"]
        self.client = None if client is None else client.id
        self.round = 0 if client is None else client.draws.round
        self.rounds: int = training["rounds"]
        self.seed = seed
        self.device = device
        self.config: dict[str, Any] = dict(training["config"])
        self.classes: Any = ask["classes"]
        self.state: MutableMapping[str, Any] = ClientState({} if client is None else client.state)
        self.logged: dict[str, Any] = {}
        self._loaders = loaders
        self._folder: Path | None = None

    def loader(self, part: Part = "train") -> Any:
        """A loader of another part of the client's rows, None where there are none."""
        return None if self._loaders is None else self._loaders(part)

    def log(self, **numbers: Any) -> None:
        """Metrics, as those that the function returns."""
        self.logged.update(numbers)

    @property
    def folder(self) -> Path:
        """A folder for files of this call, gone afterwards."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="solera-"))
        return self._folder

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class ClientState(MutableMapping[str, Any]):
    """What a client keeps from round to round, written as it is set and read as it was written."""

    def __init__(self, state: MutableMapping[str, Any]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Any:
        return _unpacked(self._held()[name])

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise UsageError(f"context.state[{name!r}]: names are text")
        self._state[_STATE] = {**self._held(), name: _packed(value, f"context.state[{name!r}]")}

    def __delitem__(self, name: str) -> None:
        held = dict(self._held())
        del held[name]
        self._state[_STATE] = held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held())

    def __len__(self) -> int:
        return len(self._held())

    def _held(self) -> Mapping[str, Any]:
        held: Mapping[str, Any] = self._state.get(_STATE, {})
        return held


def _packed(value: Any, where: str) -> Any:
    """Tensors, tables with any keys, tuples and numbers as a payload."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.copy()
    if isinstance(value, torch().Tensor):
        flat = value.detach().cpu().contiguous()
        kind = str(flat.dtype).removeprefix("torch.")
        raw = flat.reshape(-1).view(torch().uint8).numpy().copy()
        return {"$tensor": raw, "dtype": kind, "shape": list(flat.shape)}
    if isinstance(value, Mapping):
        pairs = [[_packed(k, where), _packed(v, where)] for k, v in value.items()]
        return {"$table": pairs}
    if isinstance(value, tuple | list):
        kind = "$list" if isinstance(value, list) else "$tuple"
        return {kind: [_packed(inner, where) for inner in value]}
    raise UsageError(
        f"{where} holds {type(value).__module__}.{type(value).__qualname__}: a client keeps "
        "tensors, arrays, numbers and text, and tables and lists of them",
        hint="the state_dict() of an optimiser or a module in place of the thing itself",
    )


def _unpacked(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if not isinstance(value, Mapping):
        return value
    if "$tensor" in value:
        t = torch()
        raw = t.from_numpy(np.array(value["$tensor"]))
        return raw.view(getattr(t, value["dtype"])).reshape(value["shape"])
    if "$table" in value:
        return {_unpacked(k): _unpacked(v) for k, v in value["$table"]}
    if "$tuple" in value:
        return tuple(map(_unpacked, value["$tuple"]))
    return list(map(_unpacked, value["$list"]))
