"""The client's side of :class:`~solera.FedTorch`: run a loop of the user's on its rows."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.clients import Array, Client, Part
from solera.core.component import build
from solera.core.errors import DataError, Refusal, SoleraError, TaskError, UsageError
from solera.core.rng import generator
from solera.core.task import task
from solera.engines.threads import limited_threads
from solera.learn.averaging.loops.context import Context
from solera.learn.averaging.loops.functions import find_function
from solera.learn.averaging.loops.metrics import (
    Totals,
    declared,
    examples_of,
    totals_of,
)
from solera.learn.averaging.loops.networks import BuiltNetwork, build_network, parameters_of
from solera.learn.averaging.loops.rows import loader_of, rows_in, rows_of
from solera.learn.averaging.loops.step_hooks import StepCorrection
from solera.learn.averaging.private_updates import Privacy, protect_updates, spent_by_reply
from solera.learn.averaging.training.devices import GENERATOR, find_device, torch
from solera.learn.averaging.update_averaging import UNTRAINED
from solera.learn.averaging.updates import pack_update
from solera.learn.client_models import PRIVATE
from solera.trust.constructors import count_by, fact, update
from solera.trust.contributions import Contribution

_CONTROL = "control"


@task("torch.start", alone=True)
def start(client: Client, ask: Any) -> dict[str, Contribution]:
    """The network as its function makes it with the seed: no row is looked at."""
    with said(f"client {client.id}: model"):
        built = build_network(ask["model"], ask["seed"])
    return {
        "parameters": fact(built.parameters.to_payload()),
        "buffers": fact(built.buffers.to_payload()),
        "weights": fact(built.weights),
        "buffer_values": fact(built.buffer_values),
        "frozen": fact(built.frozen),
        "mixes_rows": fact(built.mixes_rows),
    }


@task("torch.train", spends=spent_by_reply)
def train(client: Client, ask: Any) -> dict[str, Contribution]:
    """Run the loop on the model that was sent; answer with what it changed.

    The gradients of every step of an optimiser are corrected by μ (v − w) + c − c_k, where ``mu``
    or a ``control`` is sent.
    """
    with loop_at(client, ask) as loop:
        built, network = loop.built, loop.network
        before = built.read_parameters(network)
        correction = loop.correction()
        with nullcontext() if correction is None else correction.watching():
            metrics = loop.run("train", ask["train"], "train")
        after = built.read_parameters(network)
        loop.check_trained(before, after, correction)
        reply = loop.update_of(after)
        if ask.get("privacy") is not None:
            return reply
        rows = rows_in(loop.loader("train"), len(client.data))
        examples = examples_of(metrics, rows, loop.where("train"))
        reply["rows"] = count_by(None) if examples == len(client.data) else update(float(examples))
        loop.add_metrics(reply, metrics, examples, "train")
        if correction is not None and "control" in ask:
            reply["control"] = update(loop.moved_control(correction))
    return reply


@task("torch.evaluate")
def evaluate(client: Client, ask: Any) -> dict[str, Contribution]:
    """What a function of the user's says of the model on rows of one part."""
    part = ask["part"]
    samples = client.data.samples(part)
    rows = len(client.data.part(part) if samples is None else samples)
    with loop_at(client, ask) as loop:
        metrics: Any = None
        if rows:
            with torch().no_grad():
                metrics = loop.run("evaluate", ask["evaluate"], part)
        reply: dict[str, Contribution] = {"rows": update(float(rows))}
        loop.add_metrics(reply, metrics, rows, "evaluate")
    return reply


@contextmanager
def loop_at(client: Client, ask: Any) -> Iterator[LoopOfClient]:
    """One call of a function of the user's at a client, on the model that was sent, seeded."""
    with said(f"client {client.id}, round {client.draws.round}: model"):
        built = build_network(ask["model"], ask["start_seed"], ask["frozen"])
    with seeded(loop_seed(client), ask["threads"]):
        loop = LoopOfClient(client, ask, built)
        try:
            yield loop
        finally:
            loop.context.close()


class LoopOfClient:
    """A client with its copy of the network, its loaders and what the loop is told."""

    def __init__(self, client: Client, ask: Any, built: BuiltNetwork) -> None:
        self.client = client
        self.ask = ask
        self.built = built
        self._loaders: dict[Part, Any] = {}
        device = find_device(ask["device"])
        self.network: Any = moved(built.copy(*self._with_private_part()), device)
        self.context = Context(client, ask, device, self.loader, loop_seed(client))

    def where(self, function: str) -> str:
        return f"client {self.client.id}, round {self.client.draws.round}: {function}"

    # --- the model ---

    def _hidden(self) -> tuple[Any, Any] | None:
        """Marks of the parameters and of the buffers that stay here."""
        names = self.ask["private"]
        if not names:
            return None
        return self.built.parameters.select(names), self.built.buffers.select(names)

    def _with_private_part(self) -> tuple[Array, Array]:
        weights, buffers = np.array(self.ask["weights"]), np.array(self.ask["buffers"])
        hidden = self._hidden()
        if hidden is not None and PRIVATE in self.client.state:
            put_private(weights, buffers, hidden, self.client.state[PRIVATE])
        elif hidden is not None and "part" in self.ask:
            raise Refusal(UNTRAINED)
        return weights, buffers

    # --- the loop ---

    def loader(self, part: Part) -> Any:
        """The loader of a part; None where the client has no such rows."""
        if part not in self._loaders:
            self._loaders[part] = self._new_loader(part)
        return self._loaders[part]

    def _new_loader(self, part: Part) -> Any:
        ask, training = self.ask, self.ask["training"]
        where = self.where("data")
        if ask["data"] is not None:
            with said(where):
                dataset = find_function(ask["data"])(self.client, part)
        else:
            first = next(iter(parameters_of(self.network).values()))
            dtype = first.dtype if self.built.dtype == np.float64 else torch().float32
            dataset = rows_of(self.client, part, ask["classes"], dtype)
        if dataset is None or (hasattr(dataset, "__len__") and not len(dataset)):
            return None
        collate = None if ask["collate"] is None else find_function(ask["collate"])
        return loader_of(dataset, training["batch_size"], collate, part == "train", where)

    def run(self, kind: str, function: str, part: Part) -> Any:
        """What the user's function returns and logs, or an error that names client and round."""
        where = self.where(kind)
        loader = self.loader(part)
        if loader is None:
            raise Refusal(f"client {self.client.id} has no rows to {kind} on")
        parts = self.network.values() if isinstance(self.network, Mapping) else [self.network]
        for network in parts:
            network.train(kind == "train")
        with said(where, loader):
            result = find_function(function)(self.network, loader, self.context)
        if result is not None and not isinstance(result, Mapping):
            totals_of(result, 1, where)
        return {**self.context.logged, **(result or {})}

    def check_trained(self, before: Array, after: Array, correction: StepCorrection | None) -> None:
        """Raise an error for a loop that trained nothing, or something else."""
        where = self.where("train")
        changed = self.built.unfrozen(self.network)
        if changed:
            raise DataError(
                f"{where} changed parameters that were frozen: {', '.join(changed[:5])}",
                hint="unfreeze them in model(), so that they are averaged",
            )
        if np.array_equal(before, after):
            raise DataError(
                f"{where} moved no parameter of the model",
                hint="step an optimiser over model.parameters(), of the model that train is given",
            )
        if not np.isfinite(after).all():
            raise DataError(
                f"{where} ended in parameters that are not finite", hint="a smaller step size"
            )
        if correction is not None and not correction.steps:
            raise UsageError(
                f"{where} took no step of an optimiser of torch.optim: mu= and scaffold= correct "
                "these alone"
            )

    def correction(self) -> StepCorrection | None:
        """What the gradients of steps are corrected by, if by anything."""
        mu = self.ask["training"]["mu"]
        control = self.ask.get("control")
        if not mu and control is None:
            return None
        places = self.built.parameters
        parameters = {name: parameters_of(self.network)[name] for name, _ in places.named}
        shift = None
        if control is not None:
            own = self.client.state.get(_CONTROL, np.zeros_like(control))
            shift = dict(places.views(torch().from_numpy(control - own)))
        return StepCorrection(parameters, mu, shift)

    def moved_control(self, correction: StepCorrection) -> Array:
        """c_k ← the mean gradient of the steps, which is c_k − c + (w − w_k)/(τη) of plain descent.

        Returns how far that moved it.
        """
        common = self.ask["control"]
        own = self.client.state.get(_CONTROL, np.zeros_like(common))
        mean = np.array(own)
        gradients = correction.means()
        for name, view in self.built.parameters.views(mean):
            if name in gradients:
                view[...] = gradients[name].cpu().float().numpy()
        hidden = self._hidden()
        if hidden is not None:
            mean[hidden[0]] = 0
        self.client.state[_CONTROL] = mean
        return np.asarray(mean - own)

    # --- the reply ---

    def update_of(self, after: Array) -> dict[str, Contribution]:
        """What the loop changed, packed, and the buffers; what is private stays here."""
        ask, client = self.ask, self.client
        change = after - ask["weights"]
        buffers = self.built.read_buffers(self.network)
        hidden = self._hidden()
        if hidden is not None:
            private = np.concatenate([after[hidden[0]], buffers[hidden[1]]])
            client.state[PRIVATE] = private
            change, buffers = change[~hidden[0]], buffers[~hidden[1]]
        privacy: Privacy | None = ask.get("privacy")
        reply: dict[str, Contribution] = {}
        values = change[None]
        if privacy is not None:
            counted = np.ones(len(change), dtype=bool)
            values, below = protect_updates(values, counted, privacy, [client])
            reply["rows"] = fact(1.0)  # a number of rows would be told without noise
            if below is not None:
                reply["below"] = update(below[0])
        steps = build(ask["steps"])
        packed = pack_update(
            torch().from_numpy(values), steps, client.key, [client.state], [client]
        )
        reply["update"] = update({name: value[0] for name, value in packed.items()})
        if len(buffers) and privacy is None:
            if not np.isfinite(buffers).all():
                raise DataError(f"{self.where('train')} ended in buffers that are not finite")
            reply["buffers"] = update(buffers)
        return reply

    def add_metrics(
        self, reply: dict[str, Contribution], metrics: Any, examples: float, kind: str
    ) -> None:
        ask, where = self.ask, self.where(kind)
        totals: Totals = totals_of(metrics, examples, where)
        totals = declared(totals, ask["metrics"], ask["secure"], where)
        if totals:
            reply["metrics"] = update(totals)


def put_private(weights: Array, buffers: Array, hidden: tuple[Any, Any], private: Any) -> None:
    """Put the part that a client keeps into parameters and buffers."""
    count = int(hidden[0].sum())
    weights[hidden[0]] = private[:count]
    buffers[hidden[1]] = private[count:]


def loop_seed(client: Client) -> int:
    """From what a loop draws at this client in this round."""
    draws = client.draws
    return int(generator(draws.seed, draws.purpose, draws.round, client.id).integers(2**63))


def moved(network: Any, device: Any) -> Any:
    """The network on a device."""
    if isinstance(network, Mapping):
        return {name: part.to(device) for name, part in network.items()}
    return network.to(device)


@contextmanager
def seeded(seed: int, threads: int | None) -> Iterator[None]:
    """PyTorch, NumPy and Python draw from this seed inside, and go on as before afterwards."""
    t = torch()
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with GENERATOR, t.random.fork_rng(enabled=True), limited_threads(threads):
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        t.default_generator.manual_seed(seed)  # torch's own function writes a traceback each time
        if t.cuda.is_available():
            t.cuda.manual_seed_all(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def said(where: str, loader: Any = None) -> Iterator[None]:
    """An error inside names client and round, with the lines of the user's that it came from."""
    try:
        yield
    except SoleraError:
        raise
    except Exception as error:
        libraries = tuple(str(Path(file).parent) for file in (torch().__file__, __file__))
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [f for f in frames[1:] if not f.filename.startswith(libraries)]
        lines = "".join(traceback.format_list(theirs))
        reason = f"{type(error).__name__}: {error}"
        raise TaskError(f"{where} failed\n{lines}{reason}", hint=_way_out(error, loader)) from error


def _way_out(error: Exception, loader: Any) -> str | None:
    text = str(error)
    if "Expected more than 1 value per channel" in text:
        size = getattr(loader, "batch_size", None)
        return (
            f"the last batch of batch_size={size} has one row, of which batch normalisation makes "
            "nothing: another batch_size, or data= with DataLoader(…, drop_last=True)"
        )
    if "daemonic processes" in text:
        return "num_workers=0 in a worker of engine='processes', or engine='local' or 'ray'"
    return None
