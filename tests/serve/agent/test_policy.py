"""Default deny: what the file does not allow is refused, and the refusal says by which rule."""

from __future__ import annotations

import re
from datetime import datetime, time, timezone
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from solera.core.ranges import Range
from solera.serve.agent.policy_rules import Hours
from solera.trust.gate import POLICIES

import solera as so
from solera.core.engine import Ask, Preparation
from solera.core.errors import Refusal, UsageError
from solera.core.task import task
from solera.serve.agent.policy import JobFacts, NeedsApproval, Policy


@task("policy.t")
def nothing(client, ask):
    return None


TEXT = """\
[data]
min_rows = 50
columns = ["age", "bmi"]

[approval]
mode = "auto"
approvers = { "dr.garcia" = "abababababababababababababababababababababababababababababababab" }

[hours]
from = "20:00"
to = "06:00"

[output]
max_bytes = 1_000
min_count = 5

[privacy]
epsilon = 4
delta = 1e-6

[[task]]
name = "linear.train"
version = 1
[task.where]
epochs = { max = 10 }
lr = { min = 0.0, max = 1.0 }
loss = { in = ["softmax", "sigmoid"] }
note = { max_length = 5, optional = true }

[[task]]
name = "preprocess.*"

[[task]]
name = "preprocess.count"
only = true
[task.where]
"edges.size" = { max = 100 }
"""
POLICY = Policy.parse(TEXT)


def digest(spec: bytes) -> str:
    """What a job is known by: the address of its description's blob."""
    return sha256(spec).hexdigest()


JOB = JobFacts(digest(b"job"), "ana", "managed")
NIGHT = datetime(2026, 1, 5, 23, 30)
FINE = {"epochs": 3, "lr": 0.5, "loss": "softmax", "coef": np.zeros((2, 3))}


def check(task="linear.train", version=1, payload=FINE, now=NIGHT, policy=POLICY):
    policy.check(JOB, task, version, payload, now)


def test_what_keeps_every_rule_may_run():
    check()
    check(payload={**FINE, "note": "short"})
    check("preprocess.moments", 3, None)
    check("preprocess.count", 1, {"edges": {"size": 10}})


def test_an_empty_policy_allows_nothing():
    with pytest.raises(Refusal, match=r"the policy does not allow task 'data\.describe'"):
        check("data.describe", policy=Policy.parse(""))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"task": "linear.trains"}, "the policy does not allow task 'linear.trains'"),
        ({"task": "preprocess"}, "does not allow task 'preprocess'"),
        ({"version": 2}, "with version 2, only with version 1"),
        ({"payload": {**FINE, "epochs": 20}}, "with epochs = 20, which must be at most 10"),
        ({"payload": {**FINE, "lr": -0.1}}, "lr = -0.1, which must be at least 0 at most 1"),
        ({"payload": {**FINE, "lr": float("nan")}}, "lr = nan, which must be"),
        ({"payload": {**FINE, "lr": True}}, "lr = True, which must be"),
        ({"payload": {**FINE, "lr": "0.5"}}, "lr = '0.5', which must be"),
        ({"payload": {**FINE, "loss": "own"}}, "loss = 'own', which must be one of 'softmax', 'si"),
        (
            {"payload": {**FINE, "note": "longer"}},
            "note = 'longer', which must be no longer than 5",
        ),
        ({"payload": {"lr": 0.5, "loss": "softmax"}}, "epochs = nothing, which must be at most 10"),
        ({"payload": None}, "epochs = nothing"),
        ({"now": NIGHT.replace(hour=12)}, "it is 12:30, the policy allows tasks from 20:00 to 06"),
        (
            {"task": "preprocess.count", "payload": {"edges": {"size": 101}}},
            "edges.size = 101, which must be at most 100",
        ),
        (
            {"task": "preprocess.count", "payload": {"edges": {"size": 1}, "rows": True}},
            "with 'rows', which it does not name",
        ),
    ],
)
def test_every_rule_refuses_and_says_why(wrong, reason):
    with pytest.raises(Refusal, match=re.escape(reason)):
        check(**wrong)


def test_the_most_exact_name_decides():
    with pytest.raises(Refusal, match="does not name"):
        check("preprocess.count", 1, {"edges": {"size": 1}, "more": 1})
    entry = '[[task]]\nname = "policy.t"\n'
    either = Policy.parse(f"{entry}version = 1\n{entry}version = 3\n")
    check("policy.t", 1, policy=either)
    check("policy.t", 3, policy=either)
    with pytest.raises(Refusal, match="version 2"):
        check("policy.t", 2, policy=either)


numbers = st.integers(-1000, 1000) | st.floats(-1e3, 1e3)


@given(numbers, numbers, numbers)
def test_ranges_hold_for_numbers_and_arrays(low, high, value):
    allowed = Range(min=low, max=high)
    assert allowed.allows(value) == (low <= value <= high)
    array = np.array([low, value], dtype=np.float64)
    assert allowed.allows(array) == (low <= high and low <= value <= high)
    assert not allowed.allows([value, float("nan")])
    assert not allowed.allows({"a": value})


@given(st.times(), st.times(), st.times())
def test_hours_and_their_reverse_share_the_day(start, end, moment):
    if start != end:
        assert (moment in Hours(start, end)) != (moment in Hours(end, start))


@pytest.mark.parametrize(
    ("clock", "inside"),
    [("19:59", False), ("20:00", True), ("00:00", True), ("05:59", True), ("06:00", False)],
)
def test_hours_pass_midnight(clock, inside):
    assert (time.fromisoformat(clock) in POLICY.hours) == inside


def test_a_time_with_a_zone_is_read_as_local_time():
    local = NIGHT.astimezone()
    check(now=local.astimezone(timezone.utc))  # noqa: UP017


def test_replies_are_limited():
    POLICY.check_reply("linear.train", 1000)
    with pytest.raises(Refusal, match="has 1,001 bytes, max_bytes = 1,000"):
        POLICY.check_reply("linear.train", 1001)


def test_a_transformer_needs_an_entry_too():
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    scaler = so.FedScaler().fit(so.simulate(X, y, clients=2))
    asked = Ask("policy.t", 1, None, np.array([4]), 0, prepare=(Preparation.by(scaler),))
    with pytest.raises(Refusal, match=r"does not allow task 'prepare\.FedScaler'"):
        Policy.parse('[[task]]\nname = "policy.t"').check_ask(JOB, asked, 4, NIGHT)
    inside = {"made": {"$component": "FedScaler", "params": {"then": [{"$component": "Odd"}]}}}
    nested = Ask("policy.t", 1, None, np.array([4]), 0, prepare=(Preparation(inside, ""),))
    both = '[[task]]\nname = "policy.t"\n[[task]]\nname = "prepare.FedScaler"'
    Policy.parse(both).check_ask(JOB, asked, 4, NIGHT)
    with pytest.raises(Refusal, match=r"does not allow task 'prepare\.Odd'"):
        Policy.parse(both).check_ask(JOB, nested, 4, NIGHT)


def prepared(description):
    return Ask("policy.t", 1, None, np.array([4]), 0, prepare=(Preparation(description, ""),))


@pytest.mark.parametrize(
    "made",
    [
        {"$component": "FedLinear", "params": {}},
        {"$component": "Transformer", "params": {}},
        {"$component": "os.system", "params": {}},
        {"$component": ["FedScaler"], "params": {}},
        {"$component": None},
        {},
        5,
    ],
)
def test_what_is_no_transformer_prepares_no_rows(made):
    everything = Policy.parse('[[task]]\nname = "*"')
    for description in ({"made": made, "learned": {}}, made):
        with pytest.raises(Refusal, match="is not an installed transformer"):
            everything.check_ask(JOB, prepared(description), 4, NIGHT)


def test_the_budget_of_the_policy_is_that_of_the_gate():
    assert POLICY.limits.budget == (4.0, 1e-6)
    assert Policy.parse('policy = "training"').limits.budget is None
    text = '[output]\nnoised = ["cells"]\n[privacy]\nepsilon = 1.0\nledger = "/srv/rows.ledger"'
    policy = Policy.parse(text)
    assert policy.limits.noised == {"cells"}
    assert policy.privacy.ledger == "/srv/rows.ledger"


# --- approvals ---


def test_a_job_waits_for_an_approval():
    policy = Policy.parse(TEXT.replace('"auto"', '"ask"'))
    with pytest.raises(NeedsApproval, match=r"of ana\) is not approved \(dr.garcia can approve"):
        check(policy=policy)
    policy.check(JOB, "linear.train", 1, FINE, NIGHT, approved=True)


# --- the file ---


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[hours]", "[hour]", "p.toml:9: a policy has no 'hour' (did you mean 'hours'?)"),
        ("min_rows = 50", "min_row = 50", "p.toml:2: [data] has no 'min_row' (did you mean 'min"),
        ("min_rows = 50", 'min_rows = "50"', "p.toml:2: min_rows = '50': Expected `int"),
        ("min_rows = 50", "min_rows = -1", "p.toml:2: min_rows = -1: Expected `int` >= 0"),
        ('mode = "auto"', 'mode = "never"', "p.toml:6: mode = 'never': Invalid enum value"),
        ('"20:00"', '"25:00"', "p.toml:10: from = '25:00'"),
        ('"20:00"', '"06:00"', "p.toml:9: from and to are the same"),
        ('to = "06:00"\n', "", "p.toml:9: [hours] needs to = …"),
        ("epsilon = 4", "epsilon = -4", "p.toml:18: epsilon = -4"),
        ("epsilon = 4", "epsilon = inf", "p.toml:17: epsilon and delta must be finite"),
        ("delta = 1e-6", "delta = nan", "p.toml:1"),
        ("delta = 1e-6", "delta = 1.0", "p.toml:19: delta = 1.0"),
        ("epsilon = 4\n", "", "p.toml:17: [privacy] needs epsilon"),
        ('[[task]]\nname = "linear.train"\n', "[[task]]\n", "p.toml:21: [[task]] needs name"),
        ("epochs = { max = 10 }", "epochs = { mx = 10 }", "p.toml:25: rule 'epochs' has no 'mx'"),
        ("{ max = 100 }", '{ max = "a" }', "p.toml:36: max = 'a': Expected `float | null`"),
        ("{ max = 100 }", "100", "p.toml:36: rule 'edges.size' is a table, not 100"),
        ("min_rows = 50", "min_rows = ", "p.toml:2: this is not TOML"),
        (
            'name = "linear.train"',
            'name = "linear.trian"',
            "p.toml:22: no installed task is called 'linear.trian' (did you mean 'linear.train'?)",
        ),
        ('"preprocess.*"', '"preproces.*"', "p.toml:31: no installed task is called 'preproces.*'"),
        ('"preprocess.*"', '"prepare.FedScalr"', "did you mean 'prepare.FedScaler'?"),
        ("[data]", 'policy = "trainign"\n[data]', "p.toml:1: there is no policy 'trainign' (did"),
        ("[hours]", "[bounds]\nage = [9, 1]\n[hours]", "p.toml:10: age: the bounds must be"),
        ("[hours]", "[bounds]\nage = 9\n[hours]", "p.toml:9: bounds = "),
        ("[hours]", "[columns]\nw = { times = 2 }\n[hours]", "p.toml:10: column 'w' needs from"),
    ],
)
def test_mistakes_are_named_with_their_line(old, new, message):
    assert old in TEXT
    with pytest.raises(UsageError) as error:
        Policy.parse(TEXT.replace(old, new), file="p.toml")
    assert message in str(error.value)


def test_more_mistakes():
    with pytest.raises(UsageError, match=r"listed as \[\[task\]\]"):
        Policy.parse('[task]\nname = "a"')
    with pytest.raises(UsageError, match="needs approvers"):
        Policy.parse('[approval]\nmode = "ask"')
    with pytest.raises(UsageError, match="is a table, not 3"):
        Policy.parse("data = 3")


def test_read_and_hash(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(TEXT)
    policy = Policy.read(path)
    assert policy == POLICY
    assert policy.hash() == Policy.parse("# a remark\n" + TEXT).hash()
    assert policy.hash() != Policy.parse(TEXT.replace("max = 10 ", "max = 11 ")).hash()
    assert policy.hash() != Policy.parse(TEXT.replace("06:00", "06:01")).hash()
    with pytest.raises(UsageError, match="there is no file"):
        Policy.read(tmp_path / "none.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not a text file"):
        Policy.read(path)


def test_describe_says_it_all():
    text = POLICY.describe()
    for part in [
        "at least 50 rows; columns: age, bmi",
        "approval  not needed",
        "from 20:00 to 06:00",
        "at most 1,000 bytes; numbers from 5 rows",
        "ε = 4, δ = 1e-06, over all jobs, for what leaves with noise",
        "linear.train version 1: epochs at most 10; lr at least 0 at most 1; loss one of 'softmax'",
        "task      preprocess.*",
        "edges.size at most 100; nothing else",
    ]:
        assert part in text
    assert "task      none" in Policy.parse("").describe()


def test_the_policy_in_the_documentation_says_what_it_is_said_to_say():
    page = Path(__file__).parents[3] / "docs" / "how-to" / "data-owner.md"
    (text,) = re.findall(r"^```ini\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    policy = Policy.parse(text)
    check("linear.train", 1, FINE, policy=Policy.parse(text.replace('"ask"', '"auto"')))
    with pytest.raises(NeedsApproval):
        check("linear.train", 1, FINE, policy=policy)
    for wrong in ({"task": "heonn.statistics"}, {"payload": {**FINE, "epochs": 11}}):
        with pytest.raises(Refusal):
            check(**wrong, policy=policy)
    assert policy.data.columns == ("age", "bmi", "hr")
    assert (policy.limits.min_rows, policy.limits.min_count) == (50, 10)
    assert policy.limits.unit == "patient_id"


@pytest.mark.parametrize("line", ["numbers = 3", "saturation = 8.0"])
def test_limits_of_earlier_versions_are_refused_with_what_to_write(line):
    with pytest.raises(UsageError, match=r"policy.toml:3.*remove the line"):
        Policy.parse(f'policy = "training"\n[output]\n{line}\n')


# --- named policies ---


def test_a_named_policy_allows_by_what_leaves_and_entries_narrow_it():
    training = Policy.parse('policy = "training"')
    check("linear.train", policy=training)
    check("preprocess.moments", 1, None, policy=training)
    statistics = Policy.parse('policy = "statistics"')
    check("preprocess.moments", 1, None, policy=statistics)
    for name, policy in (("linear.train", statistics), ("no", training)):
        with pytest.raises(Refusal, match="does not allow task"):
            check(name, policy=policy)
    narrow = Policy.parse('policy = "training"\n[[task]]\nname = "linear.train"')
    check("linear.train", policy=narrow)
    with pytest.raises(Refusal, match="does not allow task"):
        check("preprocess.moments", 1, None, policy=narrow)
    assert Policy.parse("").rules_for("linear.train") == []


def test_a_file_tightens_and_loosens_single_limits():
    policy = Policy.parse(
        """
        policy = "training"
        [data]
        min_rows = 200
        unit = "patient"
        [bounds]
        age = [0, 110]
        [listed]
        classes = ["no", "yes"]
        sex = ["f", "m"]
        [output]
        min_count = 10
        parameters = 0.1
        encrypted = ["gram"]
        """
    )
    limits = policy.limits
    assert (limits.min_rows, limits.min_count, limits.parameters) == (200, 10, 0.1)
    assert limits.unit == "patient"
    assert limits.bounds == {"age": (0, 110)}
    assert limits.listed == {"": ("no", "yes"), "sex": ("f", "m")}
    assert limits.encrypted == {"gram"}
    assert limits.allows == POLICIES["training"].allows
    assert "at least 200 persons" in policy.describe()
