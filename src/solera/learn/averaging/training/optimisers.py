"""The optimisers of clients: plain descent and Adam, which are our own, and those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from solera.core.constraints import nearest
from solera.core.errors import UsageError
from solera.core.registry import new_registry
from solera.learn.averaging.training.batches import TrainingConfig
from solera.learn.averaging.training.devices import torch

OURS = ("sgd", "adam")
"""What many clients are trained with at once."""
_given: dict[str, Callable[..., Any]] = new_registry()


def optimiser_name(optimiser: Any) -> str:
    """The name of an optimiser; a function is registered under one, for simulation."""
    if isinstance(optimiser, str) and (optimiser in OURS or optimiser in _given):
        return optimiser
    known = _of_torch()
    if isinstance(optimiser, str):
        name = optimiser.lower()
        if name not in known:
            hint = nearest(optimiser, [*OURS, *(cls.__name__ for cls in known.values())])
            raise UsageError(f"optimiser={optimiser!r} is none of torch.optim", hint=hint)
    elif isinstance(optimiser, type) and known.get(optimiser.__name__.lower()) is optimiser:
        name = optimiser.__name__.lower()
    elif callable(optimiser):
        name = f"given/{getattr(optimiser, '__qualname__', repr(optimiser))}"
        _given[name] = optimiser
        return name
    else:
        raise UsageError(
            f"optimiser={optimiser!r}: a name, a class of torch.optim or a function is meant",
            hint="such as torch.optim.AdamW, or lambda parameters, lr: torch.optim.SGD(parameters, "
            "lr=lr, nesterov=True, momentum=0.9)",
        )
    if name == "lbfgs":
        raise UsageError(
            "LBFGS evaluates a closure several times a step: FedAvg has one gradient a batch",
            hint="so.FedTorch trains by a loop of your own",
        )
    return name


def make_optimiser(weights: list[Any], config: TrainingConfig) -> Any:
    """The optimiser of that name over a client's parameters."""
    name = config.optimiser
    make = _given.get(name) or _of_torch().get(name)
    if make is None:
        raise UsageError(
            f"no optimiser {name!r} is known in this process", hint="one of torch.optim has a name"
        )
    takes = signature(make).parameters
    options: dict[str, Any] = {"lr": config.lr}
    for option, value in (("weight_decay", config.l2), ("momentum", config.momentum)):
        if value and option not in takes:
            argument = "l2" if option == "weight_decay" else option
            raise UsageError(f"{argument}={value}: the optimiser {name!r} takes no {option}")
        if value or (option == "weight_decay" and option in takes):
            options[option] = value
    return make(weights, **options)


def _of_torch() -> dict[str, Callable[..., Any]]:
    optim = torch().optim
    classes = {n: c for n, c in vars(optim).items() if isinstance(c, type)}
    return {n.lower(): c for n, c in classes.items() if issubclass(c, optim.Optimizer)}
