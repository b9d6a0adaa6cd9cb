"""The studies of attacks: their tables, at a size of seconds."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.study.named import find
from solera_studies import leakage, robust


def test_they_are_named_studies():
    assert find("robust") is robust
    assert find("leakage") is leakage


def test_rules_hold_where_the_mean_breaks(monkeypatch):
    chosen = ("sign flip × 5", "NaN")
    every = robust.attacks
    monkeypatch.setattr(robust, "attacks", lambda share: {n: every(share)[n] for n in chosen})
    kept = robust.rules
    names = ("mean", "median", "multi-Krum")
    monkeypatch.setattr(robust, "rules", lambda share: {n: kept(share)[n] for n in names})
    rows = robust.run()
    score = {row["label"]: row["measured"] for row in rows}
    note = {row["label"]: row["note"] for row in rows}
    clean = score["no attack, mean"]
    assert score["sign flip × 5, 20%, mean"] < clean - 20
    assert score["sign flip × 5, 20%, multi-Krum"] > clean - 2
    found = note["sign flip × 5, 20%, multi-Krum"]
    assert found == "down-weighted: 48 of 48 lies, 0 honest updates"
    assert score["NaN, 20%, mean"] > clean - 2
    assert note["NaN, 20%, mean"] == "excluded: 48 of 48 lies, 0 honest updates"
    captions = [caption for caption, _ in robust.figures(rows)]
    assert captions == [f"Accuracy in per cent, {share} attackers" for share in ("10%", "20%")]


def test_protections_take_away_what_attacks_find():
    rows = {row["label"]: row for row in leakage.run()}
    gradient = "rows recovered from a gradient, batch of 8, {}"
    assert rows[gradient.format("nothing")]["measured"] > 0.5
    assert rows[gradient.format("clipping and noise 1")]["measured"] == 0
    space = "rows inside the space known, {}"
    assert rows[space.format("Gram sums of 20 rows of a client")]["measured"] == 1
    assert rows[space.format("secure sum of 20 clients of 20 rows")]["measured"] == 0
    claim = "ε proved against a claim of 1, {}"
    assert rows[claim.format("all of its noise")]["measured"] <= 1
    assert rows[claim.format("a tenth of its noise")]["measured"] > 1


def test_what_was_found_out_is_told_in_words():
    history = [{"down_weighted": [[3, 0.1, "far"], [4, 0.2, "far"]]}, {"excluded": [[3, "NaN"]]}]
    told = robust.detection(history, np.array([3]))
    assert told.split("; ") == [
        "down-weighted: 1 of 2 lies, 1 honest updates",
        "excluded: 1 of 2 lies, 0 honest updates",
    ]
    assert robust.detection([{"down_weighted": [["bucket 1", 0.0, "far"]]}], np.array([3])) == (
        "1 buckets down-weighted"
    )
    with pytest.raises(so.errors.UsageError, match="no study"):
        find("robustness")
