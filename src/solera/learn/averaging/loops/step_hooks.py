"""Corrections of gradients, for whatever optimiser of PyTorch a loop steps.

A hook before every ``optimizer.step()`` adds to the gradients of the model's parameters

    μ (v − w) + c − c_k

which is FedProx's pull (Li et al. 2020) and Scaffold's control (Karimireddy et al. 2020). An
optimiser that evaluates a closure gets one whose loss and gradients are corrected alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from solera.core.errors import UsageError
from solera.learn.averaging.training.devices import torch

Tensors = Mapping[str, Any]


class StepCorrection:
    """What is added to gradients; ``means`` are the mean gradients without it, by name."""

    def __init__(self, parameters: Tensors, mu: float, shift: Tensors | None) -> None:
        self.mu = mu
        self.steps = 0
        self._names = {id(p): name for name, p in parameters.items()}
        self._anchors = {n: p.detach().clone() for n, p in parameters.items()} if mu else {}
        self._shift = {n: s.to(parameters[n]) for n, s in (shift or {}).items()}
        self._sums: dict[str, Any] = {}
        self._taken: dict[str, int] = {}
        self._depth = 0

    def means(self) -> dict[str, Any]:
        """The mean of the gradients of every parameter that was stepped."""
        return {name: total / self._taken[name] for name, total in self._sums.items()}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Correct every step that is taken inside."""
        torch()
        from torch.optim import optimizer as optim

        before = optim.register_optimizer_step_pre_hook(self._before)
        after = optim.register_optimizer_step_post_hook(self._after)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _before(self, optimiser: Any, args: Any, kwargs: Any) -> Any:
        self._depth += 1
        if self._depth > 1:  # an optimiser that steps another one
            return None
        ours = [p for g in optimiser.param_groups for p in g["params"] if id(p) in self._names]
        if not ours:
            return None
        self.steps += 1
        if getattr(optimiser, "grad_scale", None) is not None:
            raise UsageError(
                f"{type(optimiser).__name__}(fused=True) divides gradients by the scale of a "
                "GradScaler inside its step, where mu= and scaffold= cannot correct them",
                hint="fused=False, or bfloat16 without a scaler",
            )
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._correct(ours)
            return None
        corrected = self._corrected(closure, ours)
        if len(args) > 1:
            return (args[0], corrected, *args[2:]), kwargs
        return args, {**kwargs, "closure": corrected}

    def _after(self, *_: Any) -> None:
        self._depth -= 1

    def _corrected(self, closure: Callable[[], Any], ours: list[Any]) -> Callable[[], Any]:
        def evaluated() -> Any:
            with torch().enable_grad():
                loss = closure()
            penalty = self._correct(ours)
            return None if loss is None else loss + penalty

        return evaluated

    def _correct(self, ours: list[Any]) -> float:
        """Add the correction to every gradient; what it adds to the loss."""
        t = torch()
        penalty = 0.0
        with t.no_grad():
            for parameter in ours:
                gradient = parameter.grad
                if gradient is None:
                    continue
                name = self._names[id(parameter)]
                if gradient.is_sparse:
                    raise UsageError(
                        f"the gradient of {name!r} is sparse: mu= and scaffold= cannot correct it",
                        hint="nn.Embedding(…, sparse=False)",
                    )
                if self._shift:
                    total = self._sums.get(name)
                    self._sums[name] = gradient.clone() if total is None else total.add_(gradient)
                    self._taken[name] = self._taken.get(name, 0) + 1
                    shift = self._shift[name].to(gradient)
                    gradient.add_(shift)
                    penalty += float((shift * parameter).sum())
                if self.mu:
                    away = parameter - self._anchors[name].to(parameter)
                    gradient.add_(away.to(gradient), alpha=self.mu)
                    penalty += 0.5 * self.mu * float(away.square().sum())
        return penalty
