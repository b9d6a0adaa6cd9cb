"""An owner's file: what leaves, of which rows, when, and who approves; mistakes by their line."""

from __future__ import annotations

import re
from datetime import datetime, time, timezone
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solera as so
from solera.core.engine import Ask, Preparation
from solera.core.errors import PolicyRefusal, Refusal, UsageError
from solera.core.task import find_task, task
from solera.serve.agent.policy import Hours, JobFacts, NeedsApproval, OwnerPolicy
from solera.trust.open_asks import check_open_ask
from solera.trust.policy import Policy


@task("policy.t")
def nothing(client, ask):
    return None


TEXT = """\
policy = "trusted"
min_count = 7
keep_copies = "copies.pub"

[data]
columns = ["age", "bmi"]

[approval]
mode = "auto"
approvers = { "dr.garcia" = "abababababababababababababababababababababababababababababababab" }

[hours]
from = "20:00"
to = "06:00"

[privacy]
epsilon = 4
delta = 1e-6
"""
POLICY = OwnerPolicy.parse(TEXT)


def digest(spec: bytes) -> str:
    """What a job is known by: the address of its description's blob."""
    return sha256(spec).hexdigest()


JOB = JobFacts(digest(b"job"), "ana", "managed")
NIGHT = datetime(2026, 1, 5, 23, 30)


def asked(*descriptions):
    steps = tuple(Preparation(description, "") for description in descriptions)
    return Ask("policy.t", 1, None, np.array([4]), 0, prepare=steps)


def check(policy=POLICY, now=NIGHT, job=JOB, ask=None, **more):
    policy.check_ask(job, asked() if ask is None else ask, now, **more)


def test_what_keeps_every_rule_may_run():
    check()
    scaler = so.FedScaler().fit(so.simulate(np.random.default_rng(0).normal(size=(60, 2))))
    check(ask=Ask("policy.t", 1, None, np.array([4]), 0, prepare=(Preparation.by(scaler),)))


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


def test_outside_the_hours_nothing_runs():
    with pytest.raises(Refusal, match=r"it is 12:30, the policy allows tasks from 20:00 to 06:00"):
        check(now=NIGHT.replace(hour=12))
    local = NIGHT.astimezone()
    check(now=local.astimezone(timezone.utc))  # noqa: UP017


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
    for description in ({"made": made, "learned": {}}, made):
        with pytest.raises(Refusal, match="is not an installed transformer"):
            check(ask=asked(description))


@pytest.mark.parametrize("name", ["sums", "noise"])
def test_standing_jobs_need_trust(name):
    auto = OwnerPolicy.parse(f'policy = "{name}"\n[approval]\nmode = "auto"\n')
    with pytest.raises(Refusal, match='under the policy "trusted" only'):
        check(auto, job=JobFacts(JOB.hash, "ana", "standing"))
    check(OwnerPolicy.parse('policy = "trusted"'), job=JobFacts(JOB.hash, "ana", "standing"))


def test_an_upload_of_rows_leaves_under_trust_only():
    """So does everything that forgets, contributes or seals: these are asks like any other."""
    upload = find_task("select.upload")
    with pytest.raises(PolicyRefusal, match="answer no open ask"):
        check_open_ask(Policy("sums"), upload)
    sealed = find_task("vertical.rows")
    narrow = Policy.of({"policy": "trusted", "jobs": ["training"]})
    for policy in (Policy.of("noise"), narrow):
        with pytest.raises(PolicyRefusal, match='under the policy "trusted" with jobs'):
            check_open_ask(policy, sealed)
    for one in (upload, sealed):
        check_open_ask(Policy.of("trusted"), one)


def test_the_rules_are_those_of_the_three_policies():
    assert POLICY.rules == Policy.of(
        {"policy": "trusted", "min_count": 7, "privacy": {"epsilon": 4, "delta": 1e-6}}
    )
    policy = OwnerPolicy.parse('policy = "noise"\n[privacy]\nepsilon = 1.0\nledger = "/srv/led"')
    assert policy.rules.budget == (1.0, 0.0)
    assert policy.privacy.ledger == "/srv/led"


# --- approvals ---


def test_a_job_waits_for_an_approval():
    policy = OwnerPolicy.parse(TEXT.replace('"auto"', '"ask"'))
    with pytest.raises(NeedsApproval, match=r"of ana\) is not approved \(dr.garcia can approve"):
        check(policy)
    check(policy, approved=True)


def test_jobs_are_approved_one_by_one_unless_the_driver_is_trusted():
    for name in ("sums", "noise"):
        policy = OwnerPolicy.parse(f'policy = "{name}"')
        assert policy.approval.mode == "ask"
        with pytest.raises(NeedsApproval, match="nobody can approve"):
            check(policy)
    assert OwnerPolicy.parse('policy = "trusted"').approval.mode == "auto"


def test_kinds_of_jobs_need_no_approval():
    text = 'policy = "noise"\n[approval]\nmode = "auto"\nkinds = ["statistics"]\n'
    approval = OwnerPolicy.parse(text).approval
    assert not approval.is_needed("statistics")
    assert approval.is_needed("training")
    with pytest.raises(NeedsApproval):
        check(OwnerPolicy.parse(text))
    check(OwnerPolicy.parse(text.replace('"statistics"', '"open"')))


# --- the file ---


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"trusted"', '"trusetd"', "p.toml:1: there is no policy 'trusetd'"),
        ("min_count = 7", "min_cuont = 7", "p.toml:2: a policy has no 'min_cuont' (did you mean"),
        ("min_count = 7", "min_count = 0", "p.toml:2: min_count = 0: it is at least 1"),
        ("[hours]", "[hour]", "p.toml:12: a policy has no 'hour' (did you mean 'hours'?)"),
        ("columns = [", "column = [", "p.toml:6: [data] has no 'column' (did you mean 'columns'?)"),
        ('["age", "bmi"]', '"age"', "p.toml:6: columns = 'age': Expected `array"),
        (
            "[data]",
            "[data]\nmin_rows = 5",
            "p.toml:6: [data] has no 'min_rows' any more",
        ),
        ('mode = "auto"', 'mode = "never"', "p.toml:9: mode = 'never': Invalid enum value"),
        ('mode = "auto"', 'mode = "auto"\nkinds = ["statistic"]', "p.toml:10: there are no jobs"),
        ('mode = "auto"', 'mode = "ask"\nkinds = ["open"]', "p.toml:10: kinds needs mode"),
        ('"20:00"', '"25:00"', "p.toml:13: from = '25:00'"),
        ('"20:00"', '"06:00"', "p.toml:12: from and to are the same"),
        ('to = "06:00"\n', "", "p.toml:12: [hours] needs to = …"),
        ("epsilon = 4", "epsilon = -4", "p.toml:16: epsilon is over 0"),
        ("epsilon = 4", "epsilon = inf", "p.toml:16: epsilon is over 0"),
        ("delta = 1e-6", "delta = nan", "p.toml:16: epsilon is over 0"),
        ("delta = 1e-6", "delta = 1.0", "p.toml:16: epsilon is over 0"),
        ("epsilon = 4\n", "", "p.toml:16: [privacy] needs epsilon"),
        ("epsilon = 4", "epsilonn = 4\nepsilon = 4", "p.toml:17: [privacy] has no 'epsilonn'"),
        ("min_count = 7", "min_count = ", "p.toml:2: this is not TOML"),
        ("[hours]", "[columns]\nw = { times = 2 }\n[hours]", "p.toml:13: column 'w' needs from"),
    ],
)
def test_mistakes_are_named_with_their_line(old, new, message):
    assert old in TEXT
    with pytest.raises(UsageError) as error:
        OwnerPolicy.parse(TEXT.replace(old, new), file="p.toml")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('policy = "training"', 'policy = "sums"'),
        ('policy = "statistics"', 'jobs = ["statistics"]'),
        ('policy = "vertical"', 'policy = "trusted"'),
        ('policy = "upload"', 'policy = "trusted"'),
        ('policy = "sums"\n[[task]]\nname = "linear.*"', "jobs = ["),
        ('policy = "sums"\n[output]\nonly_sums = true', "min_count = 5, min_peers = 2"),
        ('policy = "sums"\nonly_sums = true', 'policy = "sums"'),
        ('policy = "sums"\nparameters = 2.0', "exact_training = true"),
        ('policy = "sums"\n[bounds]\nage = [0, 110]', "dictionary"),
        ('policy = "sums"\n[listed]\nsex = ["f", "m"]', "dictionary"),
    ],
)
def test_what_earlier_versions_wrote_is_refused_with_the_line_to_write(text, line):
    with pytest.raises(UsageError, match="any more") as error:
        OwnerPolicy.parse(text, file="p.toml")
    assert line in str(error.value.hint)
    assert str(error.value).startswith("p.toml:")


def test_more_mistakes():
    with pytest.raises(UsageError, match="names itself"):
        OwnerPolicy.parse("")
    with pytest.raises(UsageError, match="needs approvers"):
        OwnerPolicy.parse('policy = "sums"\n[approval]\nmode = "ask"')
    with pytest.raises(UsageError, match="is a table, not 3"):
        OwnerPolicy.parse('policy = "sums"\ndata = 3')


def test_read_and_hash(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(TEXT)
    policy = OwnerPolicy.read(path)
    assert policy == POLICY
    assert policy.hash() == OwnerPolicy.parse("# a remark\n" + TEXT).hash()
    for old, new in (("= 7", "= 8"), ("06:00", "06:01"), ('"trusted"', '"sums"')):
        assert policy.hash() != OwnerPolicy.parse(TEXT.replace(old, new)).hash()
    with pytest.raises(UsageError, match="there is no file"):
        OwnerPolicy.read(tmp_path / "none.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not a text file"):
        OwnerPolicy.read(path)


def test_describe_says_it_all():
    text = POLICY.describe()
    for part in [
        "'trusted'",
        "THE DRIVER CAN READ ROWS",
        "columns: age, bmi",
        "approval  not needed",
        "from 20:00 to 06:00",
        "ε = 4, δ = 1e-06, over all jobs, for what leaves with noise",
        "a sealed copy of each reply",
    ]:
        assert part in text
    text = OwnerPolicy.parse('policy = "sums"\nexact_training = true').describe()
    assert "at least 2 other owners, numbers from 5 persons of all" in text
    assert "exact training allowed" in text
    assert "nobody: name approvers" in text


def test_the_policy_in_the_documentation_says_what_it_is_said_to_say():
    page = Path(__file__).parents[3] / "docs" / "how-to" / "data-owner.md"
    (text,) = re.findall(r"^```ini\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    policy = OwnerPolicy.parse(text)
    assert policy.rules.policy == "sums"
    assert policy.approval.mode == "ask"
    assert policy.approval.approvers
    assert policy.data.columns == ("age", "bmi", "hr")
    assert policy.rules.unit == "patient_id"
