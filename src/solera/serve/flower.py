"""Solera over Flower: any learner in a ServerApp, and one ClientApp for every SuperNode.

``solera flower init`` writes an app of two files that calls both functions here; ``flwr run``
starts it over an existing SuperLink. What travels are payload frames of ours, as arrays of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from solera.core.errors import MissingExtra
from solera.core.federation import Federation
from solera.serve.agent.flower import answer
from solera.serve.carried import Parts
from solera.serve.driver.flower import Lost, over_nodes

_RECORD = "solera"


def server_app(main: Callable[[Federation, Mapping[str, Any]], None]) -> Any:
    """A ServerApp that calls ``main(federation, config)``; ``config`` is that of the run.

    Of the configuration, ``federation``, ``clients``, ``seconds``, ``seed``, ``owner``,
    ``known_keys`` and ``secure`` say whom to ask and how: see
    :func:`solera.serve.driver.flower.over_nodes`.
    """
    ServerApp = _flwr("serverapp").ServerApp
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def run(grid: Any, context: Any) -> None:
        config = dict(context.run_config)
        whom = {name: config[name] for name in _WHOM if name in config}
        federation = over_nodes(GridNodes(grid), job=f"run-{context.run_id}", **whom)
        with federation:
            main(federation, config)

    return app


_WHOM = ("federation", "clients", "seconds", "seed", "owner", "known_keys", "secure")


def client_app() -> Any:
    """A ClientApp that answers as the owner's policy allows; see :mod:`solera.serve.agent.flower`.

    It takes the owner's settings from the SuperNode's ``--node-config``, none from the run.
    """
    flwr = _flwr("app")
    app = _flwr("clientapp").ClientApp()

    def said(action: str) -> Callable[[Any, Any], Any]:
        def respond(message: Any, context: Any) -> Any:
            parts = answer(action, _parts_of(message.content), context.node_config)
            return flwr.Message(content=_record_of(parts), reply_to=message)

        return respond

    app.query("hello")(said("hello"))
    app.query("ask")(said("ask"))
    return app


class GridNodes:
    """The Grid of a ServerApp as :class:`solera.serve.driver.flower.Nodes`."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._flwr = _flwr("app")

    def ids(self) -> list[int]:
        return sorted(self._grid.get_node_ids())

    def send(self, action: str, messages: Mapping[int, Parts], seconds: float | None) -> list[Any]:
        written = [
            self._flwr.Message(
                content=_record_of(parts),
                dst_node_id=node,
                message_type=f"query.{action}",
                ttl=seconds,
            )
            for node, parts in messages.items()
        ]
        known = list(self._grid.push_messages(written)) or [None] * len(written)
        return list(zip(known, messages, strict=True))

    def receive(self, tickets: list[Any]) -> dict[int, Parts | Lost]:
        waiting = dict(tickets)
        found: dict[int, Parts | Lost] = {}
        if None in waiting:
            found = {
                node: Lost("the SuperLink did not take the message")
                for id, node in tickets
                if id is None
            }
        ids = [id for id in waiting if id is not None]
        for message in self._grid.pull_messages(ids) if ids else ():
            node = waiting[message.metadata.reply_to_message_id]
            if message.has_error():
                found[node] = Lost(f"error {message.error.code} of Flower: {message.error.reason}")
            else:
                found[node] = _parts_of(message.content)
        tickets[:] = [ticket for ticket in tickets if ticket[1] not in found]
        return found


def _record_of(parts: Parts) -> Any:
    """Bytes by name as a record that Flower sends in pieces."""
    flwr = _flwr("app")
    arrays = {
        name: flwr.Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)
        for name, data in parts.items()
    }
    return flwr.RecordDict({_RECORD: flwr.ArrayRecord(arrays)})


def _parts_of(content: Any) -> Parts:
    record = content.get(_RECORD, {})
    return {name: array.data for name, array in record.items()}


def _flwr(module: str) -> Any:
    """A part of Flower, imported when it is needed."""
    from importlib import import_module

    try:
        return import_module(f"flwr.{module}")
    except ImportError:
        raise MissingExtra.of("Solera over Flower", "flower") from None
