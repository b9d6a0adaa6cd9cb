"""SecureBoost: the driver's side, which sees numbers of steps and sealed bytes."""

from __future__ import annotations

import warnings
from typing import Any, Literal

from solera.core.constraints import Count, NonNegative, Positive, ProperFraction
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.schema import Schema
from solera.learn.trees.boosting.base import Loss
from solera.learn.trees.boosting.histograms import Bins
from solera.learn.vertical.base import Labels, VerticalLearner
from solera.learn.vertical.boosting.feature_owner import add_gradients, begin, split, tell_sides
from solera.learn.vertical.boosting.label_owner import choose, grow, score
from solera.learn.vertical.boosting.split_trees import (
    Conditions,
    SplitTree,
    condition_lines,
    tree_lines,
)
from solera.learn.vertical.parties import Parties
from solera.learn.vertical.party import SharedPart
from solera.privacy.additive import CipherName, WeakCipher
from solera.privacy.identifiers import Normalisation

Depth = Literal[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]


class SecureBoost(VerticalLearner):
    """Gradient boosting on columns of several parties (Cheng et al. 2021, *SecureBoost*).

    Each party cuts its own columns into bins. The label owner encrypts the gradients of the rows;
    the others add them up, encrypted, to the left of each of their candidate splits; the label
    owner decrypts the sums, takes the best split as :class:`FedHistGBDT` does and tells its owner
    by a shuffled number. Gradients are whole numbers and all sums are exact, so the trees are those
    of the same booster on the joined columns with the same bins.

    =============  =================================================================================
    who            learns
    =============  =================================================================================
    coordinator    the number of rows, trees and levels; sizes of messages, which grow with the
                   number of nodes of a level. No gradient, sum, split, side or prediction
    label owner    Σg, Σh and rows to the left of each candidate of the others, by a number whose
                   meaning it does not know, for the nodes of all trees; how many candidates each
                   party has; whose condition stands at a node, and which of the node's rows go
                   left; when the model is applied, on which side of each condition each row lies
    feature owner  its own conditions that were taken, and the rows of the nodes where they stand
                   (which are alike in their labels); the number of nodes of a level. No gradient
                   and no label
    =============  =================================================================================

    An honest but curious label owner learns the others' binned rows: every sum is an equation of
    who is left of a candidate, and the gradients of every tree are other coefficients. Least
    squares over the sums of 50 trees of 569 rows says of 98.7 % of all rows and candidates on which
    side they are (guessing: 74 %), of 100 trees of 99.9 %. ``min_rows`` bounds what is split, not
    what is told, and encryption hides nothing from the one who has the key. What the others hold
    back is what bins mean: names, units and thresholds. Parties follow the protocol.

    Parameters
    ----------
    rounds: trees (per class of several). lr: η. max_depth: levels of a tree. l2: λ.
    min_rows: fewest rows of a leaf. bins: most bins of a column.
    cipher: ``"ckks"`` (192 bits of security) or ``"paillier"`` (128 bits, many times slower);
        ``"plain"`` encrypts nothing and is for comparison.
    labels, align, normalise, validation, test, deadline: see :class:`VerticalLearner`.
    """

    allows_missing = True

    def __init__(
        self,
        *,
        rounds: Count = 50,
        lr: Positive = 0.1,
        max_depth: Depth = 3,
        l2: NonNegative = 1.0,
        min_rows: Count = 20,
        bins: Bins = 32,
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
        self.rounds = rounds
        self.lr = lr
        self.max_depth = max_depth
        self.l2 = l2
        self.min_rows = min_rows
        self.bins = bins
        self.cipher = cipher

    @property
    def predicts(self) -> bool:
        return True

    def agree_on_rows(self, federation: Federation) -> Schema:
        schema = super().agree_on_rows(federation)
        _loss(schema)
        return schema

    def loss(self) -> Loss:
        """The name of the loss that suits the label owner's target."""
        return _loss(self.schema_)

    @property
    def _trees(self) -> int:
        """Trees of a round."""
        return len(self.schema_.classes) if self.loss() == "softmax" else 1

    def train_parties(self, parties: Parties) -> None:
        if self.cipher == "plain":
            warnings.warn(
                "NO ENCRYPTION: every party reads the gradients, hence the labels",
                WeakCipher,
                stacklevel=2,
            )
        owner = self.owners_[0]
        others = [k for k in range(len(parties)) if k != owner]
        model = {"model": self.model_}
        growing = {**model, **self._growth(), "parties": parties.numbers}
        told = {"bins": self.bins, "owner": parties.numbers[owner]}
        parties.ask(begin, {**model, **told})
        levels = self.max_depth + 1
        for r in self.each_round(parties.federation, rounds=self.rounds):
            for k in range(self._trees):
                tree = r.index * self._trees + k
                final = tree + 1 == self.rounds * self._trees
                for level in range(levels):
                    step = tree * levels + level
                    last = {"last": final and level == self.max_depth}
                    parties.ask(grow, {**growing, "step": step, **last}, to=[owner], round=step)
                    if level == self.max_depth:
                        break
                    ask = {**model, "step": step}
                    summed = {**ask, "cipher": self.cipher}
                    parties.ask(add_gradients, summed, to=others, round=step)
                    parties.ask(choose, ask, to=[owner], round=step)
                    last = {"last": final and level == self.max_depth - 1}
                    parties.ask(split, {**ask, "tree": tree, **last}, to=others, round=step)

    def _growth(self) -> dict[str, Any]:
        return {
            "max_depth": self.max_depth,
            "cipher": self.cipher,
            "loss": self.loss(),
            "lr": float(self.lr),
            "l2": float(self.l2),
            "min_rows": self.min_rows,
        }

    def predict_parties(self, parties: Parties, part: SharedPart) -> None:
        owner = self.owners_[0]
        others = [k for k in range(len(parties)) if k != owner]
        ask = {"model": self.model_, "part": part}
        parties.ask(tell_sides, ask, to=others)
        parties.ask(score, ask, to=[owner])

    def show(self, federation: Federation, party: str | int) -> str:
        """The model as one simulated party sees it: its own conditions, the others' by name.

        The label owner sees the trees; another party sees its conditions and no tree.
        """
        part = self.part(federation, party)
        if "conditions" not in part:
            raise UsageError(f"{party} holds no part of a SecureBoost model")
        conditions = Conditions.from_payload(part["conditions"])
        if "trees" not in part:
            return "\n".join(condition_lines(conditions))
        trees = [SplitTree.from_payload(tree) for tree in part["trees"]]
        names = dict(zip(self._parties(federation).numbers, self.parties_, strict=True))
        return "\n".join(tree_lines(trees, part["owner"], conditions, names))


def _loss(schema: Schema) -> Loss:
    target, classes = schema.target, len(schema.classes)
    if target == "numbers" and schema.outputs == 1:
        return "squared"
    if target != "classes":
        raise DataError(f"SecureBoost learns classes or one number, the target is {target}")
    if classes < 2:
        raise DataError("SecureBoost needs two classes, the target has 1 class")
    return "sigmoid" if classes == 2 else "softmax"
