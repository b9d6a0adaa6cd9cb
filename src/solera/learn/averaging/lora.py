"""FedLoRA: a language model that clients adapt together, by averaging its low-rank adapters.

The base model W stays as it is and never travels. What is trained, averaged and saved are, for
layers of attention, the factors of a change B A of rank r, and a head:

    h = W x + (α/r) B A x                                          (Hu et al. 2022, equation 3)

Factors are averaged one by one, as in FedIT (Zhang et al. 2024): mean(B) mean(A) is not the mean of
the products, but what clients start from is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from msgspec import Meta

from solera.core.clients import IntArray
from solera.core.constraints import Count, Positive
from solera.core.errors import MissingExtra, UsageError
from solera.core.federation import Federation
from solera.learn.averaging.learner import FedAvg
from solera.learn.averaging.models import Model, described_loss
from solera.learn.averaging.training.optimisers import optimiser_name
from solera.privacy.dp.mechanism import DP

Rank = Annotated[int, Meta(ge=1, le=1024)]


class Adapted(Model):
    """A transformer of which a process has the files, with adapters and a head.

    ``base`` is a folder, or a name that was downloaded before; ``digest`` says which numbers it
    must hold.
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
    ) -> None:
        self.base = base
        self.digest = digest
        self.outputs = outputs
        self.rank = rank
        self.alpha = alpha
        self.targets = targets

    def module(self) -> Any:
        from solera.learn.averaging.training.adapters import AdaptedNetwork

        return AdaptedNetwork(
            self.base, self.digest, self.outputs, self.rank, self.alpha, self.targets
        )


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
        self.base_digest_ = self._network().digest
        super().begin(federation)

    def _network(self) -> Adapted:
        from solera.learn.averaging.training.adapters import read_base

        self.loss_of_target()  # a target that can be learned
        base = base_name(self.model)
        digest = vars(self).get("base_digest_") or read_base(base)[1]
        return Adapted(
            base,
            digest,
            self.schema_.outputs,
            rank=self.rank,
            alpha=self.alpha,
            targets=self.targets,
        )

    def for_prediction(self) -> Self:
        model = super().for_prediction()
        model.base_digest_ = self.base_digest_
        return model

    def why_not_closed(self) -> str | None:
        return (
            "its base model is read by torch, which is not in the process without rows, and no "
            "epoch lists its shapes; so.FedAvg(so.nn.…) on columns that it made of the texts"
        )

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
