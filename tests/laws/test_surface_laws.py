"""Every learner × target × rows × surface is right by an oracle of others, or a refusal with a way out.

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
from surface.outcome import outcome
from surface.plan import in_turn_from, pairs
from surface.surfaces import SURFACES

import solera as so

LEARNERS = {
    cls.__name__: cls
    for cls in registered(so.Learner)
    if not issubclass(cls, so.learn.VerticalLearner)
}
PERSONAL = "judged by a model that no client uses; the next issue judges personal models"
EXPECTED = {
    (name, "personal"): PERSONAL for name in ("Ditto", "FedBN", "FedPer", "FedRep", "MLFedAvg")
}
"""Learners and surfaces that are wrong and known to be; an entry that is right again must go."""
ALWAYS_RIGHT = ("fit", "predict", "save", "clone", "pipeline", "processes", "card")
"""What a learner that is registered must be right in, on some rows."""


class Group:
    """The cells of one learner, counted."""

    def __init__(self, name: str) -> None:
        self.name, self.counts = name, Counter()
        self.wrong: list[str] = []
        self.right_in: set[str] = set()
        self.failed: set[str] = set()

    def look(self, target: str, kind: str, surfaces: list[str]) -> bool:
        """Fit once and look at these surfaces; whether it could be fitted."""
        cls, fitted = LEARNERS[self.name], []
        dealt = deal(TARGETS_OF.get(cls, {}).get(target, target), kind)
        self._count(target, kind, "fit", outcome(lambda: fitted.append(Case(cls, dealt))))
        for case in fitted:
            steps = getattr(case.model, "learners", [case.model])
            for name in surfaces:
                found = outcome(lambda name=name, case=case: SURFACES[name](case), steps)
                self._count(target, kind, name, found)
        return bool(fitted)

    def _count(self, target, kind, name, found):
        expected = found.what == "wrong" and (self.name, name) in EXPECTED
        self.counts["expected" if expected else found.what] += 1
        if found.what == "right":
            self.right_in.add(name)
        if found.what == "wrong":
            self.failed.add(name)
            if not expected:
                self.wrong.append(f"{target}, {kind} rows, {name}: {found.why}")

    def close(self, record_property, looked_at) -> None:
        """Report all that is wrong together."""
        record_property("surface", dict(self.counts))
        for learner, name in EXPECTED:
            if learner == self.name and name not in self.failed:
                self.wrong.append(f"{name} is right again: take it out of EXPECTED")
        missing = [n for n in ALWAYS_RIGHT if n in looked_at and n not in self.right_in]
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
    group.close(record_property, ALWAYS_RIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_product(name, record_property):
    group = Group(name)
    for target in TARGETS:
        for kind in KINDS:
            group.look(target, kind, list(SURFACES))
    group.close(record_property, ALWAYS_RIGHT)


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
