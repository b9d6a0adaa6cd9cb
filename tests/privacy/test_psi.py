"""Identifiers, points and what intersections are made of."""

from __future__ import annotations

import numpy as np
import pytest

from solera.core.errors import DataError, Refusal
from solera.privacy.identifiers import normalise, normalised
from solera.privacy.psi import (
    POINT,
    commitment,
    matches,
    multiplied,
    points_of,
    shown,
    together,
)

pytest.importorskip("gmpy2", reason="the extra 'vertical' is not installed")
P = 2**255 - 19


def number(seed):
    return np.random.default_rng(seed).bytes(32)


@pytest.mark.parametrize(
    ("rule", "given", "expected"),
    [
        ("text", " José  GARCÍA-1", "josegarcia1"),
        ("text", "ID 00-123", "id00123"),
        ("text", "STRASSE ß ﬁn", "strassessfin"),
        ("text", "東京 ４２", "東京42"),
        ("digits", "ID 00-123", "123"),
        ("digits", "٣٤", "34"),
        ("digits", "000", "0"),
        ("date", "García 3/12/1990", "garcia19901203"),
        ("date", "garcia 1990-12-03", "garcia19901203"),
        ("date", "12/31/1990 X", "19901231x"),
        ("exact", "Jose\u0301 ", "José "),
        ("plain", " Jose\u0301  GARCÍA-1\t", "josé  garcía-1"),
        ("plain", " -5 ", "-5"),
        ("plain", "ID 00-123", "id 00-123"),
    ],
)
def test_identifiers_are_written_alike(rule, given, expected):
    assert normalise(given, rule) == expected


def test_missing_and_repeated_ones_are_counted_and_not_named():
    with pytest.raises(DataError, match="1 identifiers are missing, in rows 1") as found:
        normalised(np.array(["Ana", " - "]), "text")
    assert "Ana" not in str(found.value)
    with pytest.raises(DataError, match=r"2 rows share their identifier .* in rows 0, 2") as found:
        normalised(np.array(["Ana", "Bea", "ANA "]), "text")
    assert "ana" not in str(found.value).lower().replace("another", "")


def test_points_lie_on_the_curve_and_products_commute():
    names = [f"person {i} ü" for i in range(64)]
    points = points_of(names)
    assert points == points_of(names)
    for at in range(0, len(points), POINT):
        u = int.from_bytes(points[at : at + POINT], "little")
        assert pow(u**3 + 486662 * u**2 + u, (P - 1) // 2, P) == 1
    a, b, c = map(number, range(3))
    first = multiplied(multiplied(multiplied(points, a), b), c)
    assert first == multiplied(multiplied(multiplied(points, c), a), b)
    assert first != multiplied(multiplied(points, c), a)
    assert len(set(shown(first))) == 64
    assert not set(shown(first)) & set(shown(points))


@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_intersections_are_exact(parties, share):
    rng = np.random.default_rng(int(100 * share) + parties)
    common = {f"común {i}" for i in range(int(100 * share))}
    sets = [
        [*common, *(f"party {k} {i}" for i in range(100 - len(common)))] for k in range(parties)
    ]
    sets = [list(rng.permutation(names)) for names in sets]
    lists = []
    for names in sets:
        points = points_of(names)
        for k in range(parties):
            points = multiplied(points, number(k))
        lists.append(shown(points))
    places = matches(lists)
    for names, own in zip(sets, places, strict=True):
        assert {names[i] for i in own} == common
    for who in zip(*places, strict=True):
        assert len({sets[k][i] for k, i in enumerate(who)}) == 1


def test_points_that_nobody_has_are_refused():
    with pytest.raises(Refusal, match="no identifier has"):
        multiplied(bytes(POINT), number(0))
    with pytest.raises(Refusal, match="no list of points"):
        multiplied(b"short", number(0))


def test_the_order_depends_on_every_contribution():
    given = [number(k) for k in range(3)]
    assert together(given) != together([number(9), *given[1:]])
    assert together(given) != together([*given[:2], number(9)])
    assert commitment(given[0]) != commitment(given[1])
