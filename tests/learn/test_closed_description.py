"""``so.describe`` in a closed job, beside what pandas says of all rows together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import solera as so
from solera.core.payload import decode, encode
from solera.learn.closed_description import LEVELS, ColumnSummary

pytestmark = pytest.mark.filterwarnings("ignore::solera.simulate.epochs.DraftedDictionary")


def patients(rows: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": draw.normal(55, 12, rows).round(),
            "cost": np.where(draw.random(rows) < 0.7, 0, draw.exponential(900, rows)).round(),
            "sex": draw.choice(["f", "m"], rows),
            "ward": draw.choice(["a", "b", "c", "d"], rows, p=[0.6, 0.37, 0.02, 0.01]),
            "bmi": draw.normal(26, 4, rows).round(4),
        }
    )
    frame.loc[draw.random(rows) < 0.15, "age"] = np.nan
    return frame


def described(frame: pd.DataFrame, **options: Any) -> tuple[ColumnSummary, Any]:
    fed = so.simulate(frame, **{"clients": 4, "policy": "sums", "seed": 1, **options})
    return so.describe(fed), fed


@pytest.mark.parametrize(("rows", "seed"), [(150, 0), (400, 1), (3000, 2)])
def test_it_is_what_pandas_says(rows: int, seed: int) -> None:
    frame = patients(rows, seed)
    found, fed = described(frame)
    assert found.rows == rows
    told = {column["name"]: column for column in found.to_dict()["columns"]}
    for j, name in enumerate(["age", "cost"]):
        assert found.mean[j] == pytest.approx(frame[name].mean())
        assert found.deviation[j] == pytest.approx(frame[name].std(ddof=0))
        for level in LEVELS:
            low, high = found.counts[j].between(level)
            exact = np.nanquantile(frame[name], level, method="inverted_cdf")
            assert low <= exact < high
            shown = told[name]["quantiles"][f"{level:g}"]
            assert shown == [low if np.isfinite(low) else None, high if np.isfinite(high) else None]
        edges = np.concatenate([[-np.inf], told[name]["histogram"]["edges"], [np.inf]])
        cells = pd.cut(frame[name], edges, right=False).value_counts(sort=False)
        assert told[name]["histogram"]["rows"] == cells.tolist()
        assert {*edges[1:-1]} <= {*fed.atoms.edges(name)}
    assert found.gaps[0] == frame.age.isna().sum()
    assert told["sex"]["categories"]["names"] == ["f", "m"]
    assert told["sex"]["categories"]["rows"] == [(frame.sex == "f").sum(), (frame.sex == "m").sum()]
    assert f"f {(frame.sex == 'f').sum():,}, m " in str(found)


def test_rare_categories_count_together() -> None:
    many, _ = described(patients(3000))
    few, _ = described(patients(300))
    assert many.counts[3].names == ["a", "b", "c", "d"]
    assert few.counts[3].names in (["a", "b", "c or d"], ["a", "b or c or d"])
    assert few.counts[3].rows.sum() == 300
    assert "or d " in str(few)


def test_counts_with_noise_say_so() -> None:
    """Of the training folds fewer persons are in a category than in the whole epoch."""
    found, fed = described(patients(800), test=0.7)
    counts = found.counts[3]
    assert counts.noised
    assert "ward: no or few gaps; a about " in str(found)
    assert "(each ± 3)" in str(found)
    wards = fed.data.segments(fed.clients, "train").joined().X[:, 3].astype(int)
    atoms = fed.atoms.groups("ward")[wards]
    assert np.abs(counts.rows - np.bincount(atoms)).max() < 4
    assert found.to_dict()["columns"][3]["categories"]["noise"] == 1.0


def test_persons_with_several_rows_have_no_counts_with_noise() -> None:
    frame = pd.concat([patients(800).assign(person=np.arange(800))] * 2, ignore_index=True)
    agreed = so.epochs.draft(frame, identifier="person")
    owners = so.partitions.ByGroup(frame.person % 4)
    found, _ = described(frame, dictionary=agreed, partition=owners, test=0.7)
    assert found.counts[3].rows is None
    assert "ward: no or few gaps; too few persons to count" in str(found)
    assert found.counts[0].between(0.5)[0] > 45


def test_a_column_of_few_values_has_no_quantiles() -> None:
    frame = patients(400)
    frame["rare"] = np.where(np.arange(400) < 60, np.arange(400), np.nan)
    found, _ = described(frame, test=0.9)
    assert found.counts[5].between(0.5) == (-np.inf, np.inf)
    assert "too few persons to count" in str(found)


def test_it_travels() -> None:
    found, fed = described(patients(300))
    again = ColumnSummary.from_payload(found.schema, decode(encode(found.to_payload())))
    assert str(again) == str(found)
    assert again.to_dict() == found.to_dict()
    assert "median between" in found._repr_html_()
    assert fed.atoms is not None


def test_a_median_is_the_mean_of_the_values_around_it() -> None:
    frame = patients(2000)
    fed = so.simulate(frame, clients=4, policy="sums", seed=1)
    model = so.FedImputer("median").fit(fed)
    assert model.fill_[0] == pytest.approx(frame.age.median(), abs=1.0)
    assert model.fill_[1] == 0.0, "most cost nothing, and are one atom"
    assert model.fill_[2] == frame.sex.value_counts().index[0].startswith("m")
    scaled = so.Pipeline(so.FedScaler(), so.FedColumns((so.FedImputer("median"), ["age"])))
    fill = scaled.fit(fed).steps_[1].parts_[0].fill_
    scaler = scaled.steps_[0]
    assert fill[0] * scaler.scale_[0] + scaler.mean_[0] == pytest.approx(model.fill_[0])
