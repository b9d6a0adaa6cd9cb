"""FedLoRA: a language model that clients adapt together, by averaging its low-rank adapters.

The base model W stays as it is and never travels. What is trained, averaged and saved are, for
layers of attention, the factors of a change B A of rank r, and a head:

    h = W x + (α/r) B A x                                          (Hu et al. 2022, equation 3)

Factors are averaged one by one, as in FedIT (Zhang et al. 2024): mean(B) mean(A) is not the mean of
the products, but what clients start from is the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from msgspec import Meta

from solera.core.clients import IntArray
from solera.core.constraints import Count, Positive
from solera.core.errors import MissingExtra, SoleraError, UsageError
from solera.core.federation import Federation
from solera.learn.averaging.learner import FedAvg
from solera.learn.averaging.models import Model, described_loss
from solera.learn.averaging.training.layout import Parameter
from solera.learn.averaging.training.optimisers import optimiser_name
from solera.learn.closed import is_closed
from solera.privacy.dp.mechanism import DP
from solera.trust.board.engine import NotClosed
from solera.trust.epoch.bases import Base
from solera.trust.epoch.dictionary_file import base_lines

Rank = Annotated[int, Meta(ge=1, le=1024)]
_FAMILIES = (
    ("query", "value"),
    ("q_proj", "v_proj"),
    ("q_lin", "v_lin"),
    ("c_attn",),
    ("query_key_value",),
    ("qkv_proj",),
    ("q", "v"),
)
"""What models call the layers that make queries and values of attention."""


class Adapted(Model):
    """A transformer of which a process has the files, with adapters and a head.

    ``base`` is a folder, or a name that was downloaded before; ``digest`` says which numbers it
    must hold. ``hidden`` and ``layers`` (name, outputs, inputs) are what a dictionary lists of it:
    then a process that has neither files nor torch can make the first adapters.
    """

    stacks: ClassVar[bool] = False

    def __init__(
        self,
        base: str,
        digest: str,
        outputs: Count,
        *,
        rank: Rank = 8,
        alpha: Positive = 16.0,
        targets: Sequence[str] | None = None,
        hidden: int = 0,
        layers: Sequence[Any] = (),
    ) -> None:
        self.base = base
        self.digest = digest
        self.outputs = outputs
        self.rank = rank
        self.alpha = alpha
        self.targets = targets
        self.hidden = hidden
        self.layers = layers

    def described_params(self) -> dict[str, Any]:
        params = super().described_params()
        if self.layers:
            return params
        return {n: v for n, v in params.items() if n not in ("hidden", "layers")}

    def module(self) -> Any:
        from solera.learn.averaging.training.adapters import AdaptedNetwork, check_listed

        if self.layers:
            layers = tuple((name, wide, narrow) for name, wide, narrow in self.layers)
            check_listed(Base(self.base, self.digest, self.hidden, layers), self.targets)
        return AdaptedNetwork(
            self.base, self.digest, self.outputs, self.rank, self.alpha, self.targets
        )

    def shapes(self) -> list[tuple[str, Parameter]]:
        """As PyTorch draws them: A and the head within ± 1/√inputs, B zero."""
        if not self.layers:
            return []
        named: dict[str, Parameter] = {}
        for i, (_, wide, narrow) in enumerate(self.layers):
            down, up = (self.rank, narrow), (wide, self.rank)
            named[f"adapters.{i}.down"] = Parameter("down", down, 1 / math.sqrt(narrow))
            named[f"adapters.{i}.up"] = Parameter("up", up, fill=0.0)
        bound = 1 / math.sqrt(self.hidden)
        named["head.weight"] = Parameter("weight", (self.outputs, self.hidden), bound)
        named["head.bias"] = Parameter("bias", (self.outputs,), bound)
        return list(named.items())


class FedLoRA(FedAvg):
    """Federated fine-tuning of a language model by low-rank adapters; all else is FedAvg.

    Rows are token numbers, see :func:`so.nn.tokens <tokens>`. Needs the extra ``transformers``.

    Parameters
    ----------
    model: the folder of a base model as ``transformers`` saves it, or a name that was downloaded
        before; in simulation also a model itself. Every process reads it once.
    rank, alpha: r and α. The weights that travel grow with r.
    targets: last names of the layers that are adapted; by default those that make queries and
        values of attention.
    lr, optimiser and all others: as for :class:`FedAvg`.

    Attributes
    ----------
    weights_: adapters and head as one vector; the base model is no part of it.
    base_digest_: which base model they belong to. Another one is refused when the model is loaded.
    """

    base_digest_: str
    _listed: Base | None = None
    """What the dictionary of a closed job lists of the base."""

    def __init__(
        self,
        model: Any,
        *,
        rank: Rank = 8,
        alpha: Positive = 16.0,
        targets: Sequence[str] | None = None,
        lr: Positive = 1e-3,
        optimiser: Any = "adam",
        **averaging: Any,
    ) -> None:
        super().__init__(model, lr=lr, optimiser=optimiser, **averaging)
        self.rank = rank
        self.alpha = alpha
        self.targets = targets

    def begin(self, federation: Federation) -> None:
        vars(self).pop("base_digest_", None)  # left from an earlier fit
        engine: Any = federation.engine
        self._listed = self.base_among(engine.bases) if is_closed(federation) else None
        self.base_digest_ = self._network().digest
        super().begin(federation)

    def _network(self) -> Adapted:
        self.loss_of_target()  # a target that can be learned
        base = base_name(self.model)
        shape: dict[str, Any] = {"rank": self.rank, "alpha": self.alpha, "targets": self.targets}
        if (listed := self._listed) is not None:
            shape |= {"hidden": listed.hidden, "layers": listed.layers}
            return Adapted(base, listed.digest, self.schema_.outputs, **shape)
        from solera.learn.averaging.training.adapters import read_base

        digest = vars(self).get("base_digest_") or read_base(base)[1]
        return Adapted(base, digest, self.schema_.outputs, **shape)

    def base_among(self, bases: Sequence[Base]) -> Base:
        """What a dictionary lists of the base, with the layers that are adapted alone."""
        name = base_name(self.model)
        for base in bases:
            if base.name == name:
                places = adapted_places([place for place, *_ in base.layers], self.targets, name)
                layers = tuple(layer for layer in base.layers if layer[0] in places)
                return replace(base, layers=layers)
        raise NotClosed(
            f"FedLoRA cannot be a closed job: the dictionary lists no base model {name!r}",
            hint=f"the lines of so.nn.list_base({name!r}) in the dictionary, or solera dictionary "
            f"draft --base {name}; or the policy 'trusted'",
        )

    def for_prediction(self) -> Self:
        model = super().for_prediction()
        model.base_digest_ = self.base_digest_
        return model

    @property
    def _model_is_code(self) -> bool:
        return False

    def needs_to_load(self) -> list[str]:
        return [f"the base model {base_name(self.model)} with the digest {self.base_digest_}"]

    def described_params(self) -> dict[str, Any]:
        return {
            **self.get_params(deep=False),
            "model": base_name(self.model),
            "loss": described_loss(self.loss),
            "optimiser": optimiser_name(self.optimiser),
        }

    def check_params(self) -> None:
        super().check_params()
        if self.compile:
            raise UsageError.of(
                self, "compile", self.compile, "must be False: adapters come and go"
            )

    def _check_dp(self, dp: DP) -> None:
        super()._check_dp(dp)
        if dp.level == "record":
            raise UsageError.of(dp, "level", dp.level, "must be 'client' for FedLoRA")


def base_name(model: Any) -> str:
    """The folder or name of a base model, or the name under which a given one is kept here."""
    if isinstance(model, str | PathLike):
        return str(model)
    if not hasattr(model, "base_model"):
        raise UsageError(
            f"a base model is needed, not {model!r}",
            hint="the folder of a model as transformers saves it",
        )
    from solera.learn.averaging.training.adapters import keep_given

    return keep_given(model)


def adapted_places(names: Sequence[str], targets: Sequence[str] | None, base: str) -> list[str]:
    """The layers that get an adapter: all whose last name is among the targets."""
    kinds = {name.rpartition(".")[2] for name in names}
    families = [family for family in _FAMILIES if kinds.issuperset(family)]
    chosen = set(targets) if targets else set(families[0] if families else ())
    if not chosen or not chosen <= kinds:
        wanted = f"targets={list(targets)}" if targets else "the layers of attention"
        raise UsageError(f"{base} has no {wanted}", hint=f"targets= some of {sorted(kinds)}")
    return [name for name in names if name.rpartition(".")[2] in chosen]


def list_base(model: Any, targets: Sequence[str] | None = None) -> str:
    """The lines by which a dictionary lists a base model, so that closed jobs can adapt it.

    ``targets`` are as for :class:`FedLoRA`. All owners need the same files under the same name.
    """
    from solera.learn.averaging.training.adapters import listed

    return "\n".join(["", *base_lines(listed(base_name(model), targets)), ""])


def base_faults(bases: Sequence[Base]) -> dict[str, str]:
    """Why base models that a dictionary lists cannot be adapted here, by their names."""
    faults: dict[str, str] = {}
    for base in bases:
        try:
            from solera.learn.averaging.training.adapters import check_listed

            check_listed(base, sorted({place.rpartition(".")[2] for place, *_ in base.layers}))
        except SoleraError as error:
            faults[base.name] = error.message
    return faults


def tokens(model: str | PathLike[str], texts: Sequence[str], *, length: int = 64) -> IntArray:
    """Rows of token numbers, one per text, by the tokenizer beside a base model.

    Texts are cut after ``length`` tokens; shorter ones end in −1. Every client makes its own rows.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtra.of("cutting texts into tokens", "transformers") from error
    tokenizer = AutoTokenizer.from_pretrained(str(model), local_files_only=True)
    found = tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
    rows = np.full((len(found), length), -1, dtype=np.int64)
    for row, numbers in zip(rows, found, strict=True):
        row[: len(numbers)] = numbers
    return rows
