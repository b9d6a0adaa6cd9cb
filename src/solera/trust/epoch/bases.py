"""Base models that a dictionary lists, for processes that have the shapes of layers alone."""

from __future__ import annotations

from dataclasses import dataclass

from solera.core.config import Problem


@dataclass(frozen=True, slots=True)
class Base:
    """A base model that :class:`so.FedLoRA <solera.learn.averaging.lora.FedLoRA>` may adapt.

    ``digest`` says which one it is, ``hidden`` how wide its last states are; ``layers`` are names,
    outputs and inputs of layers that get adapters.
    """

    name: str
    digest: str
    hidden: int
    layers: tuple[tuple[str, int, int], ...]

    def check(self) -> None:
        """Raise a :class:`Problem` for an entry that makes no sense."""
        where, name = ("bases", self.name), repr(self.name)
        if not self.name.strip() or not self.name.isprintable():
            raise Problem(where, f"base {name} has no name that can be printed")
        if not (self.digest and self.layers):
            hint = "the lines of so.nn.list_base(model)"
            raise Problem(where, f"base {name} needs digest and layers", hint=hint)
