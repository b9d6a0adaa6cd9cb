"""A policy is a name, a file or a table; what earlier versions wrote names the new line."""

import pytest

from solera.core.errors import UsageError
from solera.trust.policy import NAMES, PROMISE, Policy


def test_a_policy_is_its_name_a_table_or_a_file(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('policy = "sums"\nexact_training = true\n[data]\nunit = "patient"\n')
    assert Policy.of("sums") == Policy("sums")
    assert (
        Policy.of(path)
        == Policy.of(str(path))
        == Policy("sums", exact_training=True, unit="patient")
    )
    assert Policy.of({"policy": "noise", "privacy": {"epsilon": 1}}).budget == (1.0, 0.0)
    assert Policy.of(Policy("noise")) == Policy("noise")


def test_only_trusted_lets_vertical_jobs_run():
    assert "vertical" in Policy.of("trusted").jobs
    assert "vertical" not in Policy.of("sums").jobs
    with pytest.raises(UsageError, match="no sums"):
        Policy.of({"policy": "sums", "jobs": ["vertical"]})


@pytest.mark.parametrize("name", ["statistics", "evaluation", "training", "vertical", "upload"])
def test_an_old_name_says_the_new_line(name):
    with pytest.raises(UsageError, match="any more") as refused:
        Policy.of(name)
    assert any(f'policy = "{new}"' in str(refused.value.hint) for new in NAMES)


@pytest.mark.parametrize("entry", ["task", "bounds", "listed", "classes", "output", "parameters"])
def test_an_old_entry_says_the_new_line_and_where_it_is(entry, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(f'policy = "sums"\n[{entry}]\nname = "x"\n')
    with pytest.raises(UsageError, match=rf"policy\.toml:2: .*{entry}.* any more") as refused:
        Policy.of(path)
    assert refused.value.hint.startswith("write ")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"policy": "sum"}, "there is no policy"),
        ({}, "names itself"),
        ({"policy": "sums", "min_cuont": 4}, "min_count"),
        ({"policy": "sums", "min_count": "four"}, "min_count"),
        ({"policy": "sums", "min_count": 0}, "at least 1"),
        ({"policy": "sums", "min_peers": 1}, "at least 2"),
        ({"policy": "sums", "jobs": ["trainings"]}, "training"),
        ({"policy": "noise", "privacy": {"epsilon": 0}}, "over 0"),
        ({"policy": "noise", "privacy": {"delta": 0.1}}, "needs epsilon"),
        ({"policy": "noise", "privacy": {"epsilon": float("inf")}}, "finite"),
    ],
)
def test_what_is_wrong_is_named(table, why):
    with pytest.raises(UsageError, match=why):
        Policy.of(table)


def test_the_promise_is_five_sentences_with_both_that_only_noise_prevents():
    assert len(PROMISE) == 5
    assert sum("Only noise prevents it" in sentence for sentence in PROMISE) == 2
