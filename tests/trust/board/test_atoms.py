"""Atoms of an epoch: every one holds enough persons, whatever the rows are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas
import pytest

import solera as so
from solera.core.aggregation import Sum
from solera.core.clients import Client
from solera.core.errors import SoleraError
from solera.trust.board.atoms import atoms_text, count_persons
from solera.trust.epoch import Atoms, Dictionary
from solera.trust.epoch.atoms import merged_categories, merged_cells

MIN_COUNT = 5


def drawn_table(draw: np.random.Generator) -> pandas.DataFrame:
    """Three to six owners' persons, with one row or several, with gaps and rare values."""
    persons, owners = int(draw.integers(60, 400)), int(draw.integers(3, 7))
    whose = np.arange(persons)
    if draw.random() < 0.5:
        whose = np.concatenate([whose, draw.integers(0, max(1, persons // 8), persons)])
    rows = len(whose)
    several = draw.poisson(2.0, rows).astype(float)
    lengths = np.round(draw.lognormal(0, 1.5, rows), 2)
    lengths[draw.random(rows) < 0.2] = np.nan
    shares = draw.dirichlet(np.full(9, 0.4))
    return pandas.DataFrame(
        {
            "patient": [f"p{i}" for i in whose],
            "owner": [f"o{i % owners}" for i in whose],
            "visits": several,
            "length": lengths,
            "cost": np.round(draw.lognormal(3, 1.0, rows), 2),
            "ward": draw.choice([f"w{i}" for i in range(9)], rows, p=shares),
            "seen": np.datetime64("2020-01-01") + draw.integers(0, 900, rows),
            "died": draw.choice(["no", "yes"], rows, p=[0.9, 0.1]),
        }
    )


def dictionary_of(frame: pandas.DataFrame) -> Dictionary:
    wards = ", ".join(f'"w{i}"' for i in range(9))
    return Dictionary.parse(
        f"""
identifier = "patient"
target = "died"
[columns]
visits = {{ bounds = [0, 30], grid = 1 }}
cost = {{ bounds = [0, 1_000_000] }}
length = {{ unit = "days", bounds = [0, {np.nanmax(frame["length"]) + 1}], missing = true }}
ward = {{ kind = "categorical", categories = [{wards}] }}
seen = {{ kind = "date", bounds = [2020-01-01, 2022-12-31] }}
died = {{ kind = "categorical", categories = ["no", "yes"] }}
"""
    )


def persons_by_atom(frame: pandas.DataFrame, atoms: Atoms) -> list[int]:
    """How many persons have a value in each atom, of all columns."""
    counts: list[int] = []
    codes = {"ward": [f"w{i}" for i in range(9)], "died": ["no", "yes"]}
    for name in (*atoms.intervals, *atoms.categories):
        known = frame[frame[name].notna()]
        if name in codes:
            cell = atoms.groups(name)[[codes[name].index(value) for value in known[name]]]
        else:
            values = known[name].to_numpy()
            if values.dtype.kind == "M":
                values = values.astype("datetime64[D]").astype(np.int64)
            cell = np.searchsorted(atoms.edges(name), values, side="right")
        counts += [known["patient"][cell == i].nunique() for i in range(atoms.count(name))]
    return counts


def counts_of_tables(seeds: range) -> tuple[list[int], int]:
    """The persons of every atom of as many tables, and how many columns have several atoms."""
    counts, several = [], 0
    for seed in seeds:
        frame = drawn_table(np.random.default_rng(seed))
        fed = so.simulate(
            frame, dictionary=dictionary_of(frame), group="owner", policy="sums", seed=seed
        )
        counts += persons_by_atom(frame, fed.atoms)
        several += sum(fed.atoms.count(name) > 1 for name in ("visits", "length", "ward", "seen"))
    return counts, several


def test_no_atom_holds_fewer_persons_than_min_count() -> None:
    counts, several = counts_of_tables(range(25))
    assert len(counts) > 1_000
    assert min(counts) >= MIN_COUNT
    assert several > 0.9 * 4 * 25, "atoms are of some use"


def test_a_few_persons_with_many_rows_are_no_atom() -> None:
    """Four persons are in six cells each: by rows these would pass together."""
    values = [*np.zeros(200), *np.tile([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], 4)]
    patients = [*range(200), *np.repeat(np.arange(200, 204), 6)]
    frame = pandas.DataFrame({"visits": values, "patient": patients})
    frame["owner"] = frame["patient"] % 4
    wanted = 'identifier = "patient"\n[columns]\nvisits = { bounds = [0, 63], grid = 1 }\n'
    fed = so.simulate(frame, dictionary=Dictionary.parse(wanted), group="owner", policy="sums")
    assert fed.atoms.count("visits") == 1


@pytest.mark.slow
def test_no_atom_of_many_tables_holds_fewer_persons_than_min_count() -> None:
    counts, _ = counts_of_tables(range(1_000, 1_700))
    assert len(counts) > 21_428
    assert min(counts) >= MIN_COUNT


def small(seed: int = 0, **options: object) -> so.Federation:
    frame = drawn_table(np.random.default_rng(7))
    return so.simulate(
        frame, dictionary=dictionary_of(frame), group="owner", policy="sums", seed=seed, **options
    )


def test_the_same_rows_and_secrets_have_the_same_atoms_whatever_a_job_takes() -> None:
    whole = small().atoms
    assert small(columns=["ward"], target="died", test=0.3).atoms == whole
    assert small(population="all", validation=0.1).closed_job("FedGLM").atoms == whole


EDGES = [
    np.array([2.0]),
    np.array([20.0]),
    np.array([1.0]),
    np.arange(1.0, 9),
    np.array([18500.0]),
    np.ones(1),
]


def counted(fed: so.Federation) -> Callable[[list[np.ndarray], int], np.ndarray]:
    """Asks the owners of all rows for the supports of cells."""
    job = fed.configuration.owners.job(atoms_text())

    def ask(edges: list[np.ndarray], turn: int) -> np.ndarray:
        asked = [np.ones(len(inner) + 1, dtype=bool) for inner in edges]
        payload = {"edges": edges, "asked": asked}
        return np.asarray(job.ask(count_persons, payload, round=turn).fold(Sum())["persons"])

    return ask


def test_asking_again_gives_the_same_noise() -> None:
    """A cell that another round asks for again, among others, has the same support to the bit."""
    ask = counted(small())
    first, second = ask(EDGES, 0), ask(EDGES, 1)
    third = ask([*EDGES[:4], np.array([18400.0, 18600.0]), np.ones(1)], 2)
    assert np.array_equal(first, second)
    assert np.array_equal(first[:15], third[:15])
    assert not np.array_equal(first[15:17], third[15:17])
    assert not np.array_equal(first, np.round(first)), "there is noise"


def test_the_search_asks_for_no_cell_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells in which an owner has nobody have the noise of their number, which changes."""
    asked: list[tuple[int, float, float]] = []

    def noting(client: Client, ask: dict[str, list[np.ndarray]]) -> object:
        for j, (edges, some) in enumerate(zip(ask["edges"], ask["asked"], strict=True)):
            ends = [-np.inf, *edges.tolist(), np.inf]
            asked.extend((j, ends[i], ends[i + 1]) for i in np.flatnonzero(some).tolist())
        return count_persons.one(client, ask)

    owners = small().configuration.owners
    monkeypatch.setattr(type(count_persons), "fast", property(lambda _: noting))
    assert owners.atoms() == small().atoms
    assert len(asked) == len(owners._simulated.secrets) * len(set(asked)) * 2


def test_another_secret_has_another_noise() -> None:
    first, second = counted(small(0))(EDGES, 0), counted(small(1))(EDGES, 0)
    assert not np.array_equal(first, second)
    assert np.abs(first - second).max() < 12


@pytest.mark.parametrize("seed", range(40))
def test_merged_cells_and_categories_pass_together(seed: int) -> None:
    draw = np.random.default_rng(seed)
    supports = draw.gamma(0.7, 9.0, int(draw.integers(1, 60))) + draw.normal(0, 1, 1)
    ends = merged_cells(supports, MIN_COUNT)
    assert ends[-1] == len(supports)
    for group in np.split(supports, ends[:-1]) if len(ends) > 1 else ():
        assert group.sum() >= MIN_COUNT + 5 * np.sqrt(len(group))
    groups = np.array(merged_categories(supports, MIN_COUNT))
    for atom in range(groups.max() + 1) if groups.max() else ():
        inside = supports[groups == atom]
        assert inside.sum() >= MIN_COUNT + 5 * np.sqrt(len(inside))
    assert sum(np.bincount(groups) > 1) <= 1, "one atom is *other*"


def test_a_column_in_which_nothing_passes_has_one_atom() -> None:
    assert merged_cells(np.array([3.0, 2.0, 1.0]), MIN_COUNT).tolist() == [3]
    assert merged_categories(np.array([3.0, 2.0, 1.0]), MIN_COUNT) == (0, 0, 0)


def test_edges_are_those_of_the_dictionary() -> None:
    """Values of a grid that no float holds exactly are on the side that people read."""
    frame = pandas.DataFrame({"dose": np.repeat(np.arange(0, 11) / 10, 40)})
    frame["owner"] = np.arange(len(frame)) % 4
    frame["patient"] = np.arange(len(frame))
    wanted = 'identifier = "patient"\n[columns]\ndose = { bounds = [0, 1], grid = 0.1 }\n'
    fed = so.simulate(frame, dictionary=Dictionary.parse(wanted), group="owner", policy="sums")
    assert fed.atoms.edges("dose").tolist() == [round(0.1 * i, 1) for i in range(1, 11)]


def test_atoms_that_do_not_fit_the_dictionary_are_refused() -> None:
    frame = drawn_table(np.random.default_rng(7))
    dictionary, atoms = dictionary_of(frame), small().atoms
    intervals, categories = atoms.to_payload()
    assert Atoms.from_payload([intervals, categories], dictionary) == atoms
    for wrong in (
        [{**intervals, "visits": [3.0, 3.0]}, categories],
        [{**intervals, "visits": [31.0]}, categories],
        [{**intervals, "visits": [float("nan")]}, categories],
        [intervals, {**categories, "died": [0]}],
        [intervals, {**categories, "died": [0, 2]}],
        [intervals, {**categories, "more": [0]}],
        [{}, categories],
        [5, categories],
    ):
        with pytest.raises(SoleraError):
            Atoms.from_payload(wrong, dictionary)


def test_a_name_that_has_none_is_named() -> None:
    atoms = small().atoms
    with pytest.raises(SoleraError, match=r"atoms\.groups\('ward'\)"):
        atoms.edges("ward")
    with pytest.raises(SoleraError, match="no atoms of 'wart'"):
        atoms.groups("wart")


def test_outside_closed_jobs_there_are_none() -> None:
    frame = drawn_table(np.random.default_rng(7))
    fed = so.simulate(frame, dictionary=dictionary_of(frame), group="owner")
    assert fed.atoms is None
