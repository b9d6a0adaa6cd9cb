"""Events are composed to what dp-accounting says of them."""

from __future__ import annotations

import math

import pytest

from solera.core.accounting import WHOLE_ORDERS, Event, delta_of, epsilon_of, grouped, noise_for
from solera.core.errors import UsageError

dp = pytest.importorskip("dp_accounting")
from dp_accounting.pld import PLDAccountant  # noqa: E402
from dp_accounting.rdp import RdpAccountant  # noqa: E402

DELTA = 1e-5
REPLACE = dp.NeighboringRelation.REPLACE_ONE


def test_noise_without_sampling_is_what_dp_accounting_says():
    theirs = RdpAccountant()
    theirs.compose(dp.GaussianDpEvent(4.0), 20).compose(dp.LaplaceDpEvent(3.0), 2)
    events = [Event(4.0, 15), Event(3.0, 2, "laplace"), Event(4.0, 5)]
    assert epsilon_of(events, DELTA) == theirs.get_epsilon(DELTA)
    assert delta_of(events, 2.0) == theirs.get_delta(2.0)


def test_poisson_and_fixed_samples_are_what_dp_accounting_says():
    theirs = RdpAccountant(orders=WHOLE_ORDERS)
    theirs.compose(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.2)), 30)
    theirs.compose(dp.GaussianDpEvent(6.0))
    events = [Event(1.2, 30, rate=0.05), Event(6.0)]
    assert epsilon_of(events, DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-12)
    fixed = RdpAccountant(orders=WHOLE_ORDERS, neighboring_relation=REPLACE)
    drawn = dp.SampledWithoutReplacementDpEvent(200, 10, dp.GaussianDpEvent(3.0 / 2))
    fixed.compose(drawn, 30)
    event = Event(3.0, 30, rate=0.05, sampling="fixed", among=200)
    assert epsilon_of([event], DELTA) == pytest.approx(fixed.get_epsilon(DELTA), rel=1e-12)


def test_privacy_loss_distributions_are_tighter_and_theirs():
    theirs = PLDAccountant()
    theirs.compose(dp.GaussianDpEvent(4.0), 20)
    ours = epsilon_of([Event(4.0, 20)], DELTA, "pld")
    assert ours == theirs.get_epsilon(DELTA)
    assert ours < epsilon_of([Event(4.0, 20)], DELTA)


def test_the_noise_for_an_epsilon_is_enough_and_hardly_more():
    def events(noise):
        return [Event(noise, 40, rate=0.1)]

    noise = noise_for(events, 2.0, DELTA)
    assert epsilon_of(events(noise), DELTA) <= 2.0 < epsilon_of(events(0.999 * noise), DELTA)


def test_without_delta_only_laplace_noise_counts():
    assert epsilon_of([Event(2.0, 4, "laplace")], 0.0) == 2.0
    assert epsilon_of([Event(2.0, 4, "laplace"), Event(9.0)], 0.0) == math.inf
    assert noise_for(lambda noise: [Event(noise, 3, "laplace")], 1.0, 0.0) == pytest.approx(3, 1e-3)
    with pytest.raises(UsageError, match="no noise gives"):
        noise_for(lambda noise: [Event(noise)], 1.0, 0.0)


def test_no_noise_is_no_privacy_and_nothing_is_none_spent():
    assert epsilon_of([Event(0.0)], DELTA) == math.inf
    assert delta_of([Event(0.0)], 1.0) == 1.0
    assert epsilon_of([], DELTA) == 0.0


@pytest.mark.parametrize("noise", [1e-4, 1e-20, 1e-160, 1e-200, 1e-320, 0.0, math.nan])
def test_next_to_no_noise_is_none_whatever_overflows(noise):
    """dp-accounting itself says ε = 0 of a sample with a noise multiplier of 1e-160."""
    for event in (Event(noise), Event(noise, rate=0.1), Event(noise, 2, "laplace")):
        assert epsilon_of([Event(5.0), event], DELTA) == math.inf
        assert delta_of([event], 1.0) == 1.0
    for noise in (1e-3, 0.01, 0.1):
        for rate in (1e-6, 0.1, 0.9):
            assert epsilon_of([Event(noise, rate=rate)], DELTA) > 10


def test_what_cannot_be_composed_is_said():
    fixed = Event(3.0, rate=0.1, sampling="fixed", among=100)
    with pytest.raises(UsageError, match="cannot compose"):
        epsilon_of([fixed], DELTA, "pld")
    with pytest.raises(UsageError, match="cannot compose"):
        epsilon_of([fixed, Event(1.0, rate=0.1)], DELTA)


def test_equal_events_are_one_and_travel():
    events = [Event(1.0, 2), Event(2.0), Event(1.0, 3)]
    assert grouped(events) == [Event(1.0, 5), Event(2.0)]
    assert [Event.from_payload(e.to_payload()) for e in events] == events
