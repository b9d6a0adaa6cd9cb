"""Every learner × target × rows × surface is right by an oracle, or refused with a way out.

A learner is enrolled by being registered; see the package ``surface`` for rows, oracle and
surfaces. ``make test`` looks at pairs, ``make test-all`` at the product.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from itertools import combinations

import pytest
from cases import registered
from surface.case import TARGETS_OF, Case
from surface.dealt import KINDS, TARGETS, deal
from surface.outcome import Outcome, outcome
from surface.plan import in_turn_from, pairs
from surface.surfaces import SURFACES
from surface.vertical import TARGETS_OF_PARTIES, VERTICAL_SURFACES, VerticalCase

import solera as so
from solera.learn import learner as learner_module
from solera.learn.averaging.base import ScoreAveraging
from solera.learn.card import training_facts
from solera.learn.learner import Learner

LEARNERS = {cls.__name__: cls for cls in registered(so.Learner)}
EXPECTED: dict[tuple[str, str], str] = {}
"""Learners and surfaces that are wrong and known to be; an entry that is right again must go."""
ALWAYS = ("save", "clone", "processes", "card")
"""What a model that predicts does not refuse."""
SOMEWHERE = ("fit", "predict", *ALWAYS)
"""What a learner that is registered must be right in, on some rows."""
UNPREPARED = {"FedLoRA", *(c.__name__ for c in registered(so.learn.VerticalLearner))}
"""Learners that no scaler can stand before: of tokens, and of columns that lie apart."""


class Group:
    """The cells of one learner, counted."""

    def __init__(self, name: str) -> None:
        self.name, self.counts = name, Counter()
        is_vertical = issubclass(LEARNERS[name], so.learn.VerticalLearner)
        self.made, self.surfaces = (
            (VerticalCase, VERTICAL_SURFACES) if is_vertical else (Case, SURFACES)
        )
        self.wrong: list[str] = []
        self.right_in: set[str] = set()
        self.right_here: set[str] = set()
        self.looked_at: set[str] = set()
        self.failed: set[str] = set()

    def look(self, target: str, kind: str, surfaces: list[str]) -> bool:
        """Fit once and look at these surfaces; whether it could be fitted."""
        cls, fitted = LEARNERS[self.name], []
        shapes = {**TARGETS_OF, **TARGETS_OF_PARTIES}.get(cls, {})
        dealt = deal(shapes.get(target, target), kind)
        found = outcome(lambda: fitted.append(self.made(cls, dealt)))
        if found.what != "right":
            self._count(target, kind, "fit", found)
        self.right_here = set()
        for case in fitted:
            steps = getattr(case.model, "learners", [case.model])[:-1]
            for name in surfaces:
                if name in self.surfaces:
                    found = outcome(lambda name=name, case=case: self.surfaces[name](case), steps)
                    if found.what == "refused" and name in ALWAYS and "predict" in self.right_here:
                        found = Outcome("wrong", f"refused, and predict is not: {found.why}")
                    self._count(target, kind, name, found)
        return bool(fitted)

    def _count(self, target, kind, name, found):
        expected = found.what == "wrong" and (self.name, name) in EXPECTED
        self.counts["expected" if expected else found.what] += 1
        if found.what != "absent":
            self.looked_at.add(name)
        if found.what == "right":
            self.right_in.add(name)
            self.right_here.add(name)
        if found.what == "wrong":
            self.failed.add(name)
            if not expected:
                self.wrong.append(f"{target}, {kind} rows, {name}: {found.why}")

    def close(self, record_property, must: tuple[str, ...] = SOMEWHERE) -> None:
        """Report all that is wrong together; on some rows what it ``must`` do is right."""
        record_property("surface", dict(self.counts))
        for learner, name in EXPECTED:
            if learner == self.name and name not in self.failed:
                self.wrong.append(f"{name} is right again: take it out of EXPECTED")
        missing = [n for n in must if n in self.looked_at and n not in self.right_in]
        if missing:
            self.wrong.append(f"on no rows right in {', '.join(missing)}")
        if self.wrong:
            pytest.fail(f"{self.name}:\n" + "\n".join(self.wrong), pytrace=False)


@pytest.fixture(autouse=True)
def silence():
    """Warnings of small samples are not the matter here."""
    log = logging.getLogger("solera")
    log.disabled = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    log.disabled = False


@pytest.mark.parametrize("name", LEARNERS)
def test_pairs(name, record_property):
    """Where a target is refused the next one is looked at, too, until one can be learned."""
    group = Group(name)
    for first, kind, surfaces in pairs(list(LEARNERS).index(name)):
        for target in in_turn_from(first):
            if group.look(target, kind, surfaces):
                break
    group.close(record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_product(name, record_property):
    group = Group(name)
    for target in TARGETS:
        for kind in KINDS:
            group.look(target, kind, list(SURFACES))
    more = () if name in UNPREPARED else ("pipeline",)
    group.close(record_property, SOMEWHERE + more)


def test_pairs_are_all_pairs():
    cells = {
        (learner, target, kind, surface)
        for learner in range(len(LEARNERS))
        for target, kind, surfaces in pairs(learner)
        for surface in surfaces
    }
    factors = [range(len(LEARNERS)), TARGETS, KINDS, list(SURFACES)]
    for a, b in combinations(range(4), 2):
        covered = {(cell[a], cell[b]) for cell in cells}
        assert covered == {(x, y) for x in factors[a] for y in factors[b]}


# --- the laws notice what is taken out ---


def _mean_squared_error(self, X, y=None):
    return float(self.evaluate(X, "train")["mse"]) if y is None else 0.0


def _by_training_rows(self, learner, round):
    round.log(**learner.evaluate(round.federation, "train").metrics)


def _facts_of_one_client(*args, **options):
    return {**training_facts(*args, **options), "rows": 1}


def _columns_exchanged(self, X):
    return ScoreAveraging.predict_proba(self, X)[:, ::-1]


def _without_rounds(self):
    """A learner of trees loads without them, and says nothing."""
    return {k: v for k, v in Learner.get_state(self).items() if k != "progress_"}


BROKEN = {
    "score_federation": (so.FedLinear, "score", _mean_squared_error),
    "history": (so.callbacks.Evaluate, "on_round", _by_training_rows),
    "card": (learner_module, "training_facts", _facts_of_one_client),
    "predict_proba": (so.FedLinear, "predict_proba", _columns_exchanged),
    "save": (so.FedHistGBDT, "get_state", _without_rounds),
}


@pytest.mark.parametrize("surface", BROKEN)
def test_a_mechanism_that_is_taken_out_is_noticed(surface, monkeypatch):
    owner, name, broken = BROKEN[surface]
    cls = so.FedHistGBDT if surface == "save" else so.FedLinear
    dealt = deal("numbers" if surface == "score_federation" else "two", "float64")
    assert outcome(lambda: SURFACES[surface](Case(cls, dealt))).what == "right"
    monkeypatch.setattr(owner, name, broken)
    assert outcome(lambda: SURFACES[surface](Case(cls, dealt))).what == "wrong"
