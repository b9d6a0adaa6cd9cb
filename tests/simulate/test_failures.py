from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import UsageError

X = np.random.default_rng(0).normal(size=(2000, 3))
Y = (X[:, 0] > 0).astype(int)


@so.task("test.ones")
def ones(client, ask):
    return {"one": 1, "x": np.ones(40)}


def replies(failures, **options):
    fed = so.simulate(X, Y, clients=1000, seed=4, failures=failures)
    answer = fed.ask("test.ones", quorum=0, **options)
    answered = [r.client for r in answer]
    return fed, answered, answer.failures


@pytest.mark.parametrize(
    ("option", "kind"), [("dropout", "dropped"), ("crash", "crashed"), ("corrupt", "corrupt")]
)
def test_as_many_fail_as_were_asked_for(option, kind):
    _, answered, failures = replies(so.simulation.Failures(**{option: 0.3}))
    kinds = {f.kind for f in failures}
    assert kinds <= {kind, "invalid"}
    assert 200 < len(failures) < 400
    assert len(answered) + len(failures) == 1000
    _, again, _ = replies(so.simulation.Failures(**{option: 0.3}))
    assert again == answered


def test_stragglers_are_late_only_with_a_deadline():
    slow = so.simulation.Failures(straggle=0.5, delay=10.0)
    fed, answered, failures = replies(slow)
    assert len(answered) == 1000
    assert fed.meter.records[-1].virtual > 10
    fed, answered, failures = replies(slow, deadline=10.0)
    expected = 500 * np.exp(-1)
    assert abs(len(failures) - expected) < 60
    assert {f.kind for f in failures} == {"late"}
    assert fed.meter.records[-1].virtual == 10.0


def test_rounds_fail_differently():
    fed = so.simulate(X, Y, clients=1000, seed=4, failures=so.simulation.Failures(dropout=0.5))
    first, second = ({r.client for r in fed.ask("test.ones", round=k)} for k in range(2))
    assert first != second


@pytest.mark.parametrize("engine", [{}, {"engine": "processes", "workers": 3}])
def test_learning_goes_on_and_is_the_same_everywhere(engine):
    rough = so.simulation.Failures(dropout=0.2, straggle=0.2, crash=0.1)
    with so.simulate(X, Y, clients=40, seed=2, failures=rough, **engine) as fed:
        model = so.FedLinear(rounds=8, lr=0.5).fit(fed)
    assert model.score(X, Y) > 0.9
    assert sum(h["failures"] for h in model.history_) > 30
    with so.simulate(X, Y, clients=40, seed=2, failures=rough) as fed:
        same = so.FedLinear(rounds=8, lr=0.5).fit(fed)
    np.testing.assert_allclose(model.coef_, same.coef_, rtol=1e-9)
    assert [h["failures"] for h in model.history_] == [h["failures"] for h in same.history_]


@pytest.mark.parametrize("engine", [{}, {"engine": "processes", "workers": 2}])
def test_damaged_replies_never_stop_a_run(engine):
    with so.simulate(
        X, Y, clients=100, failures=so.simulation.Failures(corrupt=0.5), **engine
    ) as fed:
        model = so.FedLinear(rounds=12).fit(fed)
        kinds = {f.kind for f in _failures(fed)}
    assert kinds == {"corrupt", "invalid"}
    assert np.isfinite(model.coef_).all()


def _failures(fed):
    found = []
    for k in range(12):
        ask = so.FedLinear(rounds=1).fit(so.simulate(X, Y, clients=1))
        payload = ask.round_ask(0)
        replies = fed.ask("linear.train", payload, round=k)
        replies.fold(so.aggregations.Mean("rows"))
        found += replies.failures
    return found


def test_when_everything_fails_the_error_says_so():
    fed = so.simulate(X, Y, clients=10, failures=so.simulation.Failures(dropout=1.0))
    with pytest.raises(so.errors.NotEnoughReplies, match=r"0 of 10 clients .* not reachable"):
        so.FedLinear(rounds=1).fit(fed)


def test_probabilities_are_checked():
    with pytest.raises(UsageError, match=r"Failures\(dropout=1.2\)"):
        so.simulation.Failures(dropout=1.2)
