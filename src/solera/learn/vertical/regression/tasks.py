"""The parties' side of vertical regression.

Every batch of rows is four asks, each with the number of the step as its round:

1. ``regression.share`` (feature owners): a·X_p θ_p, encrypted with C's key and sealed to the label
   owner.
2. ``regression.residual`` (label owner): adds its own a·X θ − t, encrypted, and seals the sum, the
   encrypted residuals, to everyone.
3. ``regression.gradient`` (all): X_pᵀ times the encrypted residuals, plus a random mask that only
   this party knows; C decrypts.
4. ``regression.update`` (all): take the mask away, and a step.

To judge, the same is done with hold-out rows, ½a in the place of a, and X_p θ_p in the place of
X_p: Σ_p (X_p θ_p)ᵀ(½ a η − t) is the loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import Client, FloatArray, IntArray
from solera.core.errors import DataError, Refusal
from solera.core.sealing import message
from solera.core.task import task
from solera.learn.vertical.kept_matrices import KeptMatrices
from solera.learn.vertical.party import (
    SharedPart,
    keep_outputs,
    keep_part,
    part_of,
    private_seed,
    replace_part,
    shared_rows,
)
from solera.learn.vertical.regression.design import COLUMN_BITS, Design
from solera.learn.vertical.regression.families import (
    CURVATURE,
    predictions,
    target_of,
    targets,
)
from solera.privacy import additive
from solera.privacy.additive import Form
from solera.privacy.additive.ckks import EXACT_BITS

RANGE_BITS = 8
"""Residuals are within ±2^8; standardised columns keep them far below."""
LEAST_HELD_OUT = 20
"""The fewest hold-out rows whose loss is told."""


@task("regression.begin")
def begin(client: Client, ask: Any) -> dict[str, Any]:
    """Standardise this party's columns, and give to the randomness of C's key."""
    model = ask["model"]
    rows = shared_rows(client, model)
    owner = client.id == ask["owner"]
    design = Design.of(rows.X, client.data.schema, clip=ask["clip"], constant=owner)
    zeros = np.zeros(design.width)
    keep_part(
        client,
        model,
        design=design.to_payload(),
        coef=zeros,
        velocity=zeros,
        owner=ask["owner"],
        family=ask["family"],
        pending=None,
    )
    if owner:
        if rows.y is None:
            raise DataError("this party holds no labels")
        _, mean, spread = target_of(ask["family"], rows.y, client.data.schema.classes)
        keep_part(client, model, target=[mean, spread])
    return {"columns": design.width, "contribution": private_seed(client, "C's key")}


@task("regression.key")
def take_key(client: Client, ask: Any) -> dict[str, Any]:
    """Keep C's public key."""
    additive.read_public(ask["cipher"], ask["key"])
    keep_part(client, ask["model"], key=ask["key"], cipher=ask["cipher"])
    return {}


class _Batch:
    """What a party knows of a batch."""

    def __init__(self, client: Client, ask: Any) -> None:
        self.part = part_of(client, ask["model"])
        if "key" not in self.part:
            raise Refusal("C has not sent its key yet")
        self.key = additive.read_public(self.part["cipher"], self.part["key"])
        self.form = Form.from_list(list(ask["form"]))
        if self.form.vectors != 1 or self.form.sum_bits != EXACT_BITS:
            raise Refusal("this form is not that of residuals")
        rows = shared_rows(client, ask["model"], ask["part"])
        here = slice(ask["first"], ask["first"] + self.form.rows)
        if here.stop > len(rows):
            raise Refusal(f"rows up to {here.stop} were asked for, there are {len(rows)}")
        if ask["purpose"] == "loss":
            _check_hold_out(ask["part"], here, len(rows))
        self.y = None if rows.y is None else rows.y[here]
        self.design = Design.from_payload(self.part["design"])
        self.X = self.design.matrix(rows.X[here])
        self.scores = self.X @ self.part["coef"]
        self.unit = fraction_bits(self.form.rows)
        self.parties = len(ask["parties"])
        half = 0.5 if ask["purpose"] == "loss" else 1.0
        self.curvature = half * CURVATURE[self.part["family"]]

    def encrypt(self, numbers: FloatArray) -> list[bytes]:
        """Fixed-point numbers of the rows, encrypted with C's key."""
        if np.abs(numbers).max(initial=0) >= 2.0**RANGE_BITS / self.parties:
            raise DataError(
                f"residuals reach {np.abs(numbers).max():.3g}: the steps are too large",
                hint="use a smaller lr or momentum, or a larger l2",
            )
        whole = np.rint(np.ldexp(numbers, self.unit)).astype(np.int64)
        return self.key.encrypt(whole[None], self.form)


def _check_hold_out(part: SharedPart, here: slice, rows: int) -> None:
    """C reads losses, so none of a few rows that it chose may be asked for."""
    if part != "validation" or here != slice(0, rows):
        raise Refusal("a loss is told of all hold-out rows together and of no others")
    if rows < LEAST_HELD_OUT:
        raise DataError(
            f"{rows} hold-out rows are too few to tell their loss",
            hint=f"set {LEAST_HELD_OUT} or more aside with validation=",
        )


def fraction_bits(rows: int) -> int:
    """Bits after the point of residuals, such that sums over so many rows stay below 2^44."""
    return EXACT_BITS - COLUMN_BITS - int(rows).bit_length() - RANGE_BITS


@task("regression.share", sealed=True)
def share(client: Client, ask: Any) -> dict[str, Any]:
    """This party's share of the residuals, encrypted, for the label owner."""
    batch = _Batch(client, ask)
    content = {"blocks": batch.encrypt(batch.curvature * batch.scores)}
    return {"sealed": [message(batch.part["owner"], "regression.residual", ask["step"], content)]}


@task("regression.residual", sealed=True)
def residual(client: Client, ask: Any) -> dict[str, Any]:
    """The encrypted residuals a η − t, for everyone."""
    batch = _Batch(client, ask)
    if "target" not in batch.part or batch.y is None:
        raise Refusal("this party holds no labels")
    others = {m["sender"]: m["content"]["blocks"] for m in ask["sealed"]}
    if set(others) != set(ask["parties"]) - {client.id}:
        raise Refusal("not all parties have sent their shares")
    t = targets(batch.part["family"], batch.y, client.data.schema.classes, *batch.part["target"])
    own = batch.encrypt(batch.curvature * batch.scores - t)
    total = batch.key.add([own, *others.values()], batch.form)
    content = {"blocks": total}
    step = ask["step"]
    return {"sealed": [message(p, "regression.gradient", step, content) for p in ask["parties"]]}


@task("regression.gradient", sealed=True)
def gradient(client: Client, ask: Any) -> dict[str, Any]:
    """X_pᵀ times the encrypted residuals, masked; or this party's part of the loss, encrypted."""
    batch = _Batch(client, ask)
    received = [m for m in ask["sealed"] if m["sender"] == batch.part["owner"]]
    if len(received) != 1:
        raise Refusal("no residuals have come from the owner of the labels")
    judging = ask["purpose"] == "loss"
    if not judging and batch.form.rows < 2 * batch.design.width:
        raise DataError(
            f"a batch of {batch.form.rows} rows is too small for {batch.design.width} columns: "
            "gradients would tell residuals",
            hint=f"use batch_size={2 * batch.design.width} or more",
        )
    if judging:
        prepared = batch.key.prepare(_whole_scores(batch.scores), batch.form)
    else:
        columns = batch.design.whole(batch.X)
        prepared = _matrices.ready(batch.key, batch.form, [columns], lambda: columns)
    blocks = received[0]["content"]["blocks"]
    products = batch.key.multiply(blocks, prepared, batch.form, masked=not judging)
    if not judging:
        pending = {"step": ask["step"], "masks": products.masks, "form": batch.form.to_list()}
        keep_part(client, ask["model"], pending=pending)
    return {"products": products.blocks}


def _whole_scores(scores: FloatArray) -> IntArray:
    """Scores as one column of whole numbers, in units of 2^−4."""
    whole = np.rint(np.ldexp(scores, COLUMN_BITS - RANGE_BITS)).astype(np.int64)
    return np.clip(whole, -(1 << COLUMN_BITS), 1 << COLUMN_BITS)[:, None]


_matrices = KeptMatrices(1024)
"""Columns of batches: the same batches come in every epoch."""


@task("regression.update")
def update(client: Client, ask: Any) -> dict[str, Any]:
    """Take the mask off the gradient and make a step with momentum; the intercept is not shrunk."""
    part = part_of(client, ask["model"])
    pending = part["pending"]
    if pending is None or pending["step"] != ask["step"]:
        raise Refusal(f"this party waits for no gradient of step {ask['step']}")
    key = additive.read_public(part["cipher"], part["key"])
    form = Form.from_list(pending["form"])
    design = Design.from_payload(part["design"])
    sums = key.unmask(ask["residues"], pending["masks"], form, design.width)[0]
    slope = np.ldexp(sums, -fraction_bits(form.rows)) / design.unit / form.rows
    shrunk = np.ones(design.width)
    if design.constant:
        shrunk[-1] = 0
    coef = part["coef"]
    velocity = ask["momentum"] * part["velocity"] - ask["lr"] * (slope + ask["l2"] * coef * shrunk)
    keep_part(client, ask["model"], coef=coef + velocity, velocity=velocity, pending=None)
    return {}


@task("regression.finish")
def finish(client: Client, ask: Any) -> dict[str, Any]:
    """Forget what only training needed."""
    part = part_of(client, ask["model"])
    working = ("key", "cipher", "velocity", "pending")
    replace_part(client, ask["model"], {k: v for k, v in part.items() if k not in working})
    return {}


# --- use ---


def _own_scores(client: Client, ask: Any) -> FloatArray:
    part = part_of(client, ask["model"])
    X = Design.from_payload(part["design"]).matrix(shared_rows(client, *_which(ask)).X)
    return np.asarray(X @ part["coef"])


def _which(ask: Any) -> tuple[str, SharedPart]:
    return ask["model"], ask["part"]


@task("regression.scores", sealed=True)
def tell_scores(client: Client, ask: Any) -> dict[str, Any]:
    """This party's share of the score of every row, for the label owner."""
    owner = part_of(client, ask["model"])["owner"]
    content = {"scores": _own_scores(client, ask)}
    return {"sealed": [message(owner, "regression.predict", 0, content)]}


@task("regression.predict", sealed=True)
def predict(client: Client, ask: Any) -> dict[str, Any]:
    """What the model says of each row, kept by the label owner."""
    part = part_of(client, ask["model"])
    shares = {m["sender"]: m["content"]["scores"] for m in ask["sealed"]}
    if set(shares) != set(ask["parties"]) - {client.id}:
        raise Refusal("not all parties have sent their shares of the scores")
    total = _own_scores(client, ask)
    for scores in shares.values():
        if scores.shape != total.shape:
            raise Refusal("a party has sent scores of other rows than all share")
        total = total + scores
    said = predictions(part["family"], total, *part["target"])
    keep_outputs(client, ask["model"], ask["part"], said)
    return {}
