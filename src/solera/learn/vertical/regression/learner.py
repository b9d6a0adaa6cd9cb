"""Vertical regression: the role of C, which makes the key and decrypts masked gradients."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta

from solera.core.constraints import Count, NonNegative, Positive, ProperFraction
from solera.core.errors import DataError
from solera.core.federation import Federation
from solera.core.schema import Schema
from solera.evaluation.figure import Figure
from solera.learn.vertical.base import Labels, VerticalLearner
from solera.learn.vertical.parties import Parties
from solera.learn.vertical.party import SharedPart, ends_of
from solera.learn.vertical.regression.design import COLUMN_BITS, Design
from solera.learn.vertical.regression.families import FamilyName
from solera.learn.vertical.regression.tasks import (
    RANGE_BITS,
    begin,
    finish,
    fraction_bits,
    gradient,
    predict,
    residual,
    share,
    take_key,
    tell_scores,
    update,
)
from solera.privacy import additive
from solera.privacy.additive import CipherName, SecretKey, WeakCipher
from solera.privacy.additive.ckks import EXACT_BITS
from solera.privacy.identifiers import Normalisation

Clip = Annotated[float, Meta(gt=0, le=1000)]
"""Standard deviations from the mean."""
_PROTOCOL = """
    The protocol is that of Hardy et al. (2017): C makes a key pair; the parties add up encrypted
    residuals of the Taylor loss (:mod:`.families`), which travel sealed, so that C never sees them;
    each party multiplies them by its own columns and C decrypts the gradient. Two things are
    stricter than there. Rows are aligned exactly, so nothing marks those that are missing. And
    every party masks its gradient before C decrypts it, so that C learns neither gradients nor
    coefficients.

    C is whoever runs the learner (driver and coordinator). Its key follows from random bytes of all
    clients, which the coordinator keeps: a driver that was killed makes the same key again.

    =============  =================================================================================
    who            learns
    =============  =================================================================================
    C              the number of rows, of each party's columns after encoding, and with
                   ``validation`` each party's part of the hold-out loss, one number per epoch.
                   Gradients reach it masked, residuals and shares sealed
    label owner    the encrypted shares of the others, to which it has no key; when the model is
                   applied, each party's share of every row's score
    feature owner  the encrypted residuals, to which it has no key; its own gradients. Those of
                   the first step, where coefficients are 0, tell all labels of the batch
    all together   C with any party could read residuals, hence labels and scores: they must not
                   join forces
    =============  =================================================================================

    The first gradient is Xᵀ(½ − y) in whole numbers, exact. Where a party's columns hold more bits
    than the batch has rows, no other labels fit: an honest but curious feature owner found all 400
    of a batch with 20 columns, and all 80 with 10, each in less than a second. That a batch must
    have twice as many rows as columns keeps residuals of later steps from being solved for, and no
    labels secret; batches of thousands of rows and few columns do.

    Parameters
    ----------
    epochs: passes over the rows. batch_size: rows of a step.
    clip: standardised values further from 0 are taken for this; the Taylor loss is a good one near
        0 alone.
    lr: length of a step. momentum: share of the last step that is added. l2: λ of ½ λ ‖θ‖².
    patience: epochs without a smaller hold-out loss after which it ends; needs ``validation``.
    cipher: ``"ckks"`` (192 bits of security), ``"paillier"`` (3072 bits, 128 bits of security,
        much slower), ``"paillier-2048"`` (112 bits, warns) or ``"plain"``, which encrypts nothing.
    labels, align, normalise, validation, test, deadline: see :class:`VerticalLearner`.

    Attributes
    ----------
    history_: with ``validation``, the hold-out loss of every epoch.
    """


class VerticalRegression(VerticalLearner, abstract=True):
    __doc__ = f"""Regression on the columns of several parties, by encrypted residuals.
{_PROTOCOL}"""

    allows_missing = True
    family: ClassVar[FamilyName]

    def __init__(
        self,
        *,
        epochs: Count = 20,
        batch_size: Count = 1024,
        clip: Clip = 3.0,
        lr: Positive = 0.1,
        momentum: ProperFraction = 0.9,
        l2: NonNegative = 1e-4,
        patience: Count | None = None,
        cipher: CipherName = "ckks",
        labels: Labels = None,
        align: Literal["psi", "order"] = "psi",
        normalise: Normalisation = "plain",
        validation: ProperFraction = 0.0,
        test: ProperFraction = 0.0,
        deadline: Positive | None = None,
    ) -> None:
        super().__init__(
            labels=labels,
            align=align,
            normalise=normalise,
            validation=validation,
            test=test,
            deadline=deadline,
        )
        self.epochs = epochs
        self.batch_size = batch_size
        self.clip = clip
        self.lr = lr
        self.momentum = momentum
        self.l2 = l2
        self.patience = patience
        self.cipher = cipher

    @property
    def predicts(self) -> bool:
        return True

    def agree_on_rows(self, federation: Federation) -> Schema:
        schema = super().agree_on_rows(federation)
        self._check_target(schema)
        return schema

    def _check_target(self, schema: Schema) -> None:
        kind = type(self).__name__
        if schema.target != "numbers" or schema.outputs != 1:
            raise DataError(
                f"{kind} needs one number to predict, the target is {schema.target}",
                hint="whole numbers are taken for classes: make the column one of floats",
            )

    def train_parties(self, parties: Parties) -> None:
        if self.cipher == "plain":
            warnings.warn("NO ENCRYPTION: C reads nothing, parties read all", WeakCipher, 2)
        told = parties.ask(begin, {"model": self.model_, **self._order(parties)})
        secret = self._key([told[k]["contribution"] for k in range(len(parties))])
        key = {"cipher": self.cipher, "key": secret.public.to_bytes()}
        parties.ask(take_key, {"model": self.model_, **key})
        widths = [int(told[k]["columns"]) for k in range(len(parties))]
        train, valid, _ = self._sizes()
        batches = np.array_split(np.arange(train), -(-train // self.batch_size))
        for r in self.each_round(parties.federation, rounds=self.epochs):
            step = r.index * (len(batches) + 1)
            for batch in batches:
                self._step(parties, secret, widths, step, int(batch[0]), len(batch))
                step += 1
            if valid:
                loss = self._judge(parties, secret, step, valid)
                r.log(loss=Figure(loss, metric="loss", part="validation", rows=valid))
                losses = [*(entry["loss"] for entry in self.history_), loss]
                waited = len(losses) - 1 - int(np.argmin(losses))
                if self.patience is not None and waited >= self.patience:
                    r.stop(f"the hold-out loss did not fall for {self.patience} epochs")
        parties.ask(finish, {"model": self.model_})

    def _key(self, contributions: Sequence[bytes]) -> SecretKey:
        """C's key pair, from the random bytes of all clients: a replay makes the same one."""
        digest = hashlib.sha512(self.model_.encode())
        for contribution in contributions:
            digest.update(contribution)
        return additive.generate(self.cipher, digest.digest())

    def _sizes(self) -> tuple[int, int, int]:
        train, valid = ends_of(self.rows_, self.validation, self.test)
        return train, valid - train, self.rows_ - valid

    def _order(self, parties: Parties) -> dict[str, Any]:
        owner = parties.numbers[self.owners_[0]]
        return {"family": self.family, "clip": float(self.clip), "owner": owner}

    def _exchange(
        self, parties: Parties, step: int, batch: dict[str, Any]
    ) -> dict[int, list[bytes]]:
        """Encrypted products of every party's own columns with the residuals of a batch."""
        owner = self.owners_[0]
        others = [k for k in range(len(parties)) if k != owner]
        ask = {"model": self.model_, "step": step, "parties": parties.numbers, **batch}
        parties.ask(share, ask, to=others, round=step)
        parties.ask(residual, ask, to=[owner], round=step)
        told = parties.ask(gradient, ask, round=step)
        return {k: told[k]["products"] for k in told}

    def _step(
        self,
        parties: Parties,
        secret: SecretKey,
        widths: Sequence[int],
        step: int,
        first: int,
        rows: int,
    ) -> None:
        form = secret.public.form(vectors=1, rows=rows, columns=max(widths), sum_bits=EXACT_BITS)
        batch = {"part": "train", "first": first, "purpose": "gradient", "form": form.to_list()}
        products = self._exchange(parties, step, batch)
        own = {
            k: {"residues": secret.decrypt(products[k], form, width)}
            for k, width in enumerate(widths)
        }
        parties.ask(
            update, {"model": self.model_, "step": step, **self._steps()}, own=own, round=step
        )

    def _steps(self) -> dict[str, float]:
        return {"lr": float(self.lr), "momentum": float(self.momentum), "l2": float(self.l2)}

    def _judge(self, parties: Parties, secret: SecretKey, step: int, rows: int) -> float:
        """The mean Taylor loss of hold-out rows, up to its value at η = 0."""
        form = secret.public.form(vectors=1, rows=rows, columns=1, sum_bits=EXACT_BITS)
        batch = {"part": "validation", "first": 0, "purpose": "loss", "form": form.to_list()}
        products = self._exchange(parties, step, batch)
        sums = [
            secret.public.unmask(secret.decrypt(blocks, form, 1), None, form, 1)[0, 0]
            for blocks in products.values()
        ]
        bits = fraction_bits(rows) + COLUMN_BITS - RANGE_BITS
        return float(np.ldexp(sum(sums), -bits) / rows)

    def predict_parties(self, parties: Parties, part: SharedPart) -> None:
        owner = self.owners_[0]
        others = [k for k in range(len(parties)) if k != owner]
        ask = {"model": self.model_, "part": part}
        parties.ask(tell_scores, ask, to=others)
        parties.ask(predict, {**ask, "parties": parties.numbers}, to=[owner])

    def coefficients(self, federation: Federation, party: str | int) -> dict[str, float]:
        """A simulated party's own coefficients of standardised columns, and no other's."""
        part = self.part(federation, party)
        design = Design.from_payload(part["design"])
        names = [*design.names, "intercept"] if design.constant else design.names
        return dict(zip(names, part["coef"].tolist(), strict=True))


class VerticalLogisticRegression(VerticalRegression):
    __doc__ = f"""Logistic regression of two classes on the columns of several parties.
{_PROTOCOL}"""

    family = "logistic"

    def _check_target(self, schema: Schema) -> None:
        if schema.target != "classes" or len(schema.classes) != 2:
            found = f"{len(schema.classes)} classes" if schema.target == "classes" else "numbers"
            raise DataError(f"{type(self).__name__} needs two classes, the target has {found}")


class VerticalLinearRegression(VerticalRegression):
    __doc__ = f"""Least squares on the columns of several parties.
{_PROTOCOL}"""

    family = "linear"


class VerticalPoissonRegression(VerticalRegression):
    __doc__ = f"""Regression of counts on the columns of several parties.

    The Taylor loss is that around the mean count: coefficients are right to first order, and large
    effects are underestimated.
{_PROTOCOL}"""

    family = "poisson"
