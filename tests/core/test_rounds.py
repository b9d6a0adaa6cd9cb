"""The round loop: selection, early stopping, checkpoints and their errors."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.errors import CheckpointError, UsageError
from solera.core.payload import encode

X = np.random.default_rng(0).normal(size=(80, 4))
Y = (X[:, 0] > 0).astype(int)


def federation(**options):
    return so.simulate(X, Y, clients=8, seed=5, **options)


def learned(model):
    return encode(describe_fitted(model))


@so.task("test.remember")
def remember(client, ask):
    """A task with client state and randomness: the hard case for resuming."""
    memory = client.state.get("memory", np.zeros(2)) + client.rng.normal(size=2)
    client.state["memory"] = memory
    return {"memory": memory, "rows": len(client.data)}


class Remembering(so.Learner):
    def __init__(self, *, rounds=4, per_round=3):
        self.rounds = rounds
        self.per_round = per_round

    def train(self, federation):
        self.total_ = np.zeros(2)
        for r in self.each_round(federation, rounds=self.rounds, per_round=self.per_round):
            self.total_ = (
                self.total_ + r.ask("test.remember").fold(so.aggregations.Mean("rows"))["memory"]
            )
            r.log(loss=float(self.total_.sum()))


class StopAt(so.callbacks.Callback):
    def __init__(self, at):
        self.at = at

    def on_round(self, learner, round):
        if round.index == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_client_state_survives_an_interruption(engine, tmp_path):
    plain = Remembering().fit(federation(engine=engine))
    for at in range(4):
        file = tmp_path / f"{at}"
        with pytest.raises(KeyboardInterrupt):
            Remembering().fit(federation(engine=engine), checkpoint=file, callbacks=[StopAt(at)])
        resumed = Remembering().fit(federation(engine=engine), checkpoint=file)
        assert learned(resumed) == learned(plain)
        assert resumed.history_ == plain.history_


def test_a_finished_run_is_not_run_again(tmp_path):
    first = Remembering().fit(federation(), checkpoint=tmp_path / "c")
    fed = federation()
    again = Remembering().fit(fed, checkpoint=tmp_path / "c")
    assert learned(again) == learned(first)
    assert fed.meter.total(task="test.remember").asks == 0


def test_checkpoints_of_other_runs_and_damaged_ones(tmp_path):
    file = tmp_path / "c"
    Remembering().fit(federation(), checkpoint=file)
    with pytest.raises(CheckpointError, match="another run"):
        Remembering(per_round=2).fit(federation(), checkpoint=file)
    with pytest.raises(CheckpointError, match="4 rounds on, rounds=3 are fewer"):
        Remembering(rounds=3).fit(federation(), checkpoint=file)
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="damaged"):
        Remembering().fit(federation(), checkpoint=file)


def test_a_finished_run_goes_on_with_more_rounds(tmp_path):
    file = tmp_path / "c"
    Remembering().fit(federation(), checkpoint=file)
    more = Remembering(rounds=6).fit(federation(), checkpoint=file)
    assert learned(more) == learned(Remembering(rounds=6).fit(federation()))


def test_a_crash_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    file = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        Remembering().fit(federation(), checkpoint=file, callbacks=[StopAt(2)])
    before = file.read_bytes()

    def die(*_):
        raise OSError("disk gone")

    monkeypatch.setattr("os.replace", die)
    with pytest.raises(OSError, match="disk gone"):
        Remembering().fit(federation(), checkpoint=file)
    assert file.read_bytes() == before


def test_callbacks_hear_of_the_end_before_the_error_goes_on():
    heard = []

    class Ears(so.callbacks.Callback):
        def on_end(self, learner):
            heard.append("end")

    class Broken(Remembering):
        def train(self, federation):
            for _ in self.each_round(federation, rounds=2):
                raise ValueError("in the body")

    try:
        Broken().fit(federation(), callbacks=[Ears()])
    except ValueError:
        heard.append("error")
    assert heard == ["end", "error"]


class Fake(so.callbacks.Callback):
    def __init__(self, losses):
        self.losses = losses

    def on_round(self, learner, round):
        round.log(score=self.losses[round.index])


def test_early_stopping_keeps_the_best():
    states = []

    class Keep(so.callbacks.Callback):
        def on_round(self, learner, round):
            states.append(learner.total_)

    stop = so.callbacks.EarlyStopping("score", patience=2)
    callbacks = [Fake([1, 3, 2, 3, 9, 9, 9, 9]), Keep(), stop]
    model = Remembering(rounds=8).fit(federation(), callbacks=callbacks)
    assert len(model.history_) == 4
    assert (model.total_ == states[1]).all()
    assert (states[3] != states[1]).all()


def test_early_stopping_resumes_exactly(tmp_path):
    def callbacks(*more):
        return [
            Fake([5, 4, 4, 4, 3, 3, 3, 3]),
            so.callbacks.EarlyStopping("score", patience=3, mode="min"),
            *more,
        ]

    plain = Remembering(rounds=8).fit(federation(), callbacks=callbacks())
    file = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        Remembering(rounds=8).fit(federation(), checkpoint=file, callbacks=callbacks(StopAt(3)))
    resumed = Remembering(rounds=8).fit(federation(), checkpoint=file, callbacks=callbacks())
    assert learned(resumed) == learned(plain)
    with pytest.raises(CheckpointError, match="callbacks"):
        Remembering(rounds=8).fit(federation(), checkpoint=file)


def test_early_stopping_names_a_missing_metric():
    with pytest.raises(UsageError, match="accuracy"):
        Remembering().fit(federation(), callbacks=[so.callbacks.EarlyStopping("accuracy")])


def test_uniform_chooses_the_budget_and_everybody_in_time():
    seen = set()

    class See(so.callbacks.Callback):
        def on_round(self, learner, round):
            assert len(np.unique(round.clients)) == 3
            seen.update(round.clients.tolist())

    Remembering(rounds=20).fit(federation(), callbacks=[See()])
    assert seen == set(range(8))


def test_a_selector_may_choose_nobody(caplog):
    class Nobody(so.selectors.Selector):
        def choose(self, round, roster, rng):
            return np.arange(2 if round else 0)

    model = so.FedLinear(rounds=3, select=Nobody()).fit(federation())
    assert "round 0 skipped" in caplog.text
    assert [h["clients"] for h in model.history_] == [0, 2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rounds": 0}, "rounds"), ({"per_round": 0}, "per_round"), ({"select": "uniform"}, "select"),
     ({"lr": 0}, "lr"), ({"epochs": 0}, "epochs"), ({"batch_size": 0}, "batch_size"),
     ({"l2": -1}, "l2")],
)  # fmt: skip
def test_impossible_parameters_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        so.FedLinear(**options).fit(federation())
