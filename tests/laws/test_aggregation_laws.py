"""Every registered aggregation is a commutative monoid, and its fast fold equals the slow one."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from cases import AGGREGATIONS, REPLIES, TESTED_ELSEWHERE, example, registered
from hypothesis import given, settings

import solera as so
from solera.core.aggregation import block_size, blocks
from solera.core.component import build, describe
from solera.core.payload import decode, encode
from solera.core.replies import Batch, Reply, Stacked
from solera.trust.encoding import Encoding, form_of

ALL = [c for c in registered(so.aggregations.Aggregation) if c not in TESTED_ELSEWHERE]
ADDITIVE = [c for c in ALL if example(c, AGGREGATIONS).additive]


def close(a, b):
    """Equal structure and, up to rounding, equal numbers."""
    if isinstance(a, dict):
        assert isinstance(b, dict)
        assert a.keys() == b.keys()
        for key in a:
            close(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            close(x, y)
    elif isinstance(a, str | bool) or a is None:
        assert a == b
    else:
        np.testing.assert_allclose(
            np.asarray(a, dtype=float), np.asarray(b, dtype=float), rtol=1e-9, atol=1e-9
        )


@st.composite
def partials(draw, cls, at_least):
    count = draw(st.integers(at_least, at_least + 3))
    payloads = draw(st.lists(REPLIES[cls], min_size=count, max_size=count))
    clients = draw(st.permutations(range(count)))
    return [Reply(c, p) for c, p in zip(clients, payloads, strict=True)]


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
def test_has_an_example_of_its_replies(cls):
    assert cls in REPLIES, f"add replies for {cls.__name__} to REPLIES in tests/laws/cases.py"
    example(cls, AGGREGATIONS)


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_is_a_commutative_monoid(cls, data):
    agg = example(cls, AGGREGATIONS)
    a, b, c = (agg.lift(r) for r in data.draw(partials(cls, 3))[:3])
    close(agg.merge(a, agg.merge(b, c)), agg.merge(agg.merge(a, b), c))
    close(agg.merge(a, b), agg.merge(b, a))
    close(agg.merge(a, None), a)
    close(agg.merge(None, a), a)
    assert agg.merge(None, None) is None


@pytest.mark.parametrize("cls", ADDITIVE, ids=lambda c: c.__name__)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_terms_add_up_as_words_of_a_secure_sum(cls, data):
    """What a secure sum does between the masks gives the partial of the plain fold."""
    agg = example(cls, AGGREGATIONS)
    replies = data.draw(partials(cls, 2))
    terms = [agg.terms(agg.lift(reply)) for reply in replies]
    encoding = Encoding(len(replies))
    assert len({encode(form_of(term)) for term in terms}) == 1
    total = sum(encoding.words(term) for term in terms)
    found = agg.from_terms(encoding.numbers(total, form_of(terms[0])))
    close(found, agg.fold_one_by_one(replies))


def test_what_needs_every_reply_is_not_additive():
    """A rule that is marked as a sum and is none would give wrong models in secret."""
    names = {cls.__name__ for cls in ADDITIVE}
    assert {"Sum", "Mean", "Grams", "UpdateMean", "SecureSum"} <= names
    assert not names & {"Collect", "Union", "Extremes", "ByFold", "CollectTrees", "MaskedWords"}


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_grouping_does_not_matter(cls, data):
    agg = example(cls, AGGREGATIONS)
    replies = data.draw(partials(cls, 4))
    cut = data.draw(st.integers(0, len(replies)))
    whole = agg.fold_one_by_one(replies)
    parts = agg.merge(agg.fold_one_by_one(replies[cut:]), agg.fold_one_by_one(replies[:cut]))
    close(whole, parts)


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_fast_fold_equals_slow_fold(cls, data):
    agg = example(cls, AGGREGATIONS)
    replies = sorted(data.draw(partials(cls, 1)), key=lambda r: r.client)
    ids = np.array([r.client for r in replies])
    payloads = [r.payload for r in replies]
    slow = agg.fold_one_by_one(replies)
    close(agg.fold(Batch(ids, payloads)), slow)
    if all(isinstance(p, dict) and _stackable(p) for p in payloads) and _same(payloads):
        stacked = Stacked({k: np.stack([p[k] for p in payloads]) for k in payloads[0]})
        close(agg.fold(Batch(ids, stacked)), slow)


def _stackable(payload):
    return all(isinstance(v, int | float | np.ndarray) for v in payload.values())


def _same(payloads):
    return len({tuple((k, np.shape(v)) for k, v in p.items()) for p in payloads}) == 1


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_partials_and_descriptions_travel(cls, data):
    agg = example(cls, AGGREGATIONS)
    a, b = (agg.lift(r) for r in data.draw(partials(cls, 2))[:2])
    there = decode(encode(agg.merge(a, b)))
    close(there, agg.merge(decode(encode(a)), decode(encode(b))))
    assert build(decode(encode(describe(agg)))) == agg


@given(st.integers(1, 100_000))
def test_blocks_cover_all_clients_once(asked):
    ranges = list(blocks(asked))
    assert [p for r in ranges[:3] for p in range(r.start, r.stop)] == list(
        range(ranges[:3][-1].stop)
    )
    assert ranges[-1].stop == asked
    assert all(a.stop == b.start for a, b in pairwise(ranges))
    assert max(r.stop - r.start for r in ranges) == min(block_size(asked), asked) <= 64
