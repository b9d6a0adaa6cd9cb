"""A policy that is just enough for a job, and everything that another one lacks."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.engine import Ask
from solera.core.errors import Refusal, SoleraError, UsageError
from solera.core.plan import objection, planned
from solera.core.ranges import Range
from solera.core.task import find_task, task
from solera.serve.agent.policy import JobFacts, Policy
from solera.serve.agent.policy_for import missing, policy_for, strictest_policy
from solera.serve.description import Description
from solera.serve.job_spec import MOST_CONTRIBUTIONS, parse_job
from solera.trust.release import Facts, RowsOut, Trees

sys.path.insert(0, str(Path(__file__).parents[2] / "laws"))

import cases
from test_plan_laws import Network

JOB = """
name = "readmission"
federation = "cardio"
owner = "dr. vega"
evaluate = "test"
deadline = 3600

[learner]
kind = "Pipeline"

[[learner.steps]]
kind = "FedBins"
bins = 8

[[learner.steps]]
kind = "FedEncoder"

[[learner.steps]]
kind = "FedLinear"
rounds = 20
lr = 0.05
epochs = 2
"""


def described(text: str = JOB) -> Description:
    return parse_job(text).describe(text)


def refused(policy: Policy, job: Description) -> list[str]:
    """What the policy lacks."""
    return missing(policy, job)


@task("policy_for.values", release=[Facts("rows")])
def tells_facts(client: Any, ask: Any) -> Any:
    """Nothing of the rows."""


@task("policy_for.rows", release=[Facts("n"), RowsOut("X")])
def tells_rows(client: Any, ask: Any) -> Any:
    """All of them."""


@task("policy_for.tree", release=[Trees("tree")])
def tells_a_tree(client, ask):
    return {"tree": []}


@task("policy_for.network", leaves="update")
def tells_a_network(client: Any, ask: Any) -> Any:
    """Parameters that tell rows."""


def test_the_strictest_named_policy_that_will_do() -> None:
    facts, rows = planned(tells_facts, 1), planned(tells_rows, 1)
    train = planned(find_task("linear.train"), 1)
    said = {"job": "j", "federation": "f", "kind": "driven", "owner": "", "seed": 0}
    assert strictest_policy((facts,)) == "evaluation"
    assert strictest_policy((facts, train)) == "training"
    assert strictest_policy((facts, rows)) == "upload"
    job = Description(**said, plan=(facts, rows))
    assert missing(Policy.parse(policy_for(job)), job) == []
    training = Policy.parse('policy = "training"\n[[task]]\nname = "policy_for.*"\n')
    assert missing(training, job) == [
        "task 'policy_for.rows' releases rows themselves: this may not leave"
    ]
    assert len(missing(Policy.parse('policy = "training"'), job)) == 1
    assert missing(Policy.parse('policy = "upload"'), job) == []
    network = Description(**said, plan=(facts, planned(tells_a_network, 1)))
    assert strictest_policy(network.plan) == "training"
    assert missing(Policy.parse(policy_for(network)), network) == []
    with pytest.raises(UsageError, match="no named policy"):
        strictest_policy((planned(tells_a_tree, 1), rows))


def test_boosting_needs_trust_or_noise_and_a_budget() -> None:
    schema = so.simulate(np.eye(8, 2), np.arange(8) % 2, clients=1).schema
    said = {"job": "j", "federation": "f", "kind": "driven", "owner": "", "seed": 0}
    plain = Description(**said, plan=so.FedHistGBDT().asks(schema))
    assert strictest_policy(plain.plan) == "trusted"
    wanting = missing(Policy.parse('policy = "training"'), plain)
    assert any("trees.histograms" in why and "without noise" in why for why in wanting)
    dp = so.DP(epsilon=1.0, delta=1e-5, level="record")
    noised = Description(**said, plan=so.FedHistGBDT(dp=dp).asks(schema))
    assert 'policy = "training"' in policy_for(noised)
    assert "[privacy]" in policy_for(noised)
    (why,) = missing(Policy.parse(policy_for(noised)), noised)
    assert "no budget" in why
    budget = "\n[privacy]\nepsilon = 1.0\ndelta = 1e-5\n"
    assert missing(Policy.parse(policy_for(noised) + budget), noised) == []


def test_a_description_says_what_a_job_asks() -> None:
    job = described()
    assert (job.job, job.federation, job.owner, job.seconds) == (
        "readmission", "cardio", "dr. vega", 3600.0
    )  # fmt: skip
    assert job.learner["kind"] == "Pipeline"
    assert job.learner["steps"][0] == {"kind": "FedBins", "bins": 8, "dp": None}
    plan = {entry.task: entry for entry in job.plan}
    assert plan["linear.train"].most == 20
    assert plan["linear.train"].where["lr"] == Range(0.05, 0.05)
    assert plan["prepare.FedBins"].where["bins"] == Range(8, 8)
    assert plan["learner.evaluate"].where["part"] == Range(among=("test",))
    back = Description.from_bytes(job.to_bytes())
    assert back == job
    assert job.to_bytes() == described().to_bytes()


def test_a_standing_job_is_contributed_to_again_and_again() -> None:
    text = 'name = "s"\nfederation = "f"\nstanding = true\nevaluate = "test"\n'
    job = described(text + '[learner]\nkind = "FedHEONN"\n')
    assert job.kind == "standing"
    plan = {entry.task: entry.most for entry in job.plan}
    assert plan == {"data.describe": 1, "heonn.statistics": MOST_CONTRIBUTIONS}


def test_functions_are_described_by_their_names() -> None:
    from solera.serve.description import learner_table

    def half(scores):  # type: ignore[no-untyped-def]
        return 0.5

    table = learner_table(so.FederatedTree("id3", filter=half))
    assert (table["kind"], table["kind_"], table["filter"]) == ("FederatedTree", "id3", "half")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, _, _ in cases.learner_cases()
        if name.count("-") == 1 and "numbers" not in name
    ],
)
def test_the_policy_for_a_learner_lets_its_fit_through_and_lacks_nothing(name: str) -> None:
    make, target = next((make, of) for n, make, of in cases.learner_cases() if n == name)
    learner = make()
    job = Description(
        job="j", federation="f", kind="driven", owner="", seed=0, plan=learner.asks(None)
    )
    policy = Policy.parse(policy_for(job))
    assert refused(policy, job) == []
    network = Network(cases.rows(target))
    learner.fit(cases.federation_over(network, learner))
    facts = JobFacts("", "", "driven")
    for ask in network.asks:
        policy.check_ask(facts, ask, int(ask.clients[0]), datetime.now())
    strange = Ask("select.upload", 1, None, np.array([0]), 0)
    with pytest.raises(Refusal, match=r"select\.upload"):
        policy.check_ask(facts, strange, 0, datetime.now())


def test_everything_that_is_missing_is_named_at_once() -> None:
    job = described()
    policy = Policy.parse(
        """
        [[task]]
        name = "data.*"
        [[task]]
        name = "prepare.FedBins"
        [task.where]
        bins = { max = 4 }
        [[task]]
        name = "linear.train"
        version = 7
        only = true
        [task.where]
        lr = { max = 0.1 }
        epochs = { in = [1, 3] }
        coef = { max = 100.0 }
        loss = { in = ["softmax"] }
        """
    )
    assert refused(policy, job) == [
        "task 'preprocess.count' is not allowed",
        "task 'prepare.FedBins': bins will be 8, and must be at most 4",
        "task 'linear.train': version 3 is asked, only version 7 is allowed",
        "task 'linear.train': epochs will be 2, and must be one of 1, 3",
        "task 'linear.train': coef must be at most 100, and the job does not say what it will be",
        "task 'linear.train': loss will be one of 'softmax', 'sigmoid', 'squared', and must be "
        "one of 'softmax'",
        "task 'linear.train': classes is not named, and nothing else is allowed",
        "task 'linear.train': batch_size is not named, and nothing else is allowed",
        "task 'linear.train': l2 is not named, and nothing else is allowed",
        "task 'prepare.FedEncoder' is not allowed",
        "task 'learner.evaluate' is not allowed",
    ]
    assert refused(Policy.parse('[[task]]\nname = "*"\n'), job) == []


@pytest.mark.parametrize(
    ("narrow", "wide", "is_within"),
    [
        (Range(1, 2), Range(0, 2), True),
        (Range(1, 2), Range(1.5, 2), False),
        (Range(1, 2), Range(max=5), True),
        (Range(max=5), Range(0, 5), False),
        (Range(1, 2), Range(), True),
        (Range(), Range(1, 2), False),
        (Range(2, 2), Range(among=(1, 2)), True),
        (Range(1, 2), Range(among=(1, 2)), False),
        (Range(among=("a",)), Range(among=("a", "b")), True),
        (Range(among=("a", "c")), Range(among=("a", "b")), False),
        (Range(among=(True,)), Range(among=(1,)), False),
        (Range(1, 2, optional=True), Range(1, 2), False),
        (Range(1, 2), Range(1, 2, optional=True), True),
        (Range(1, 2, max_length=3), Range(1, 2, max_length=2), False),
        (Range(1, 2), Range(1, 2, max_length=1), True),
        (Range(among=(), max_length=0), Range(among=(), max_length=0), True),
        (Range(among=("long",), max_length=1), Range(max_length=1), True),
        (Range(among=("long",)), Range(max_length=3), False),
        (Range(among=("long",)), Range(max_length=4), True),
    ],
)
def test_a_range_within_another(narrow: Range, wide: Range, is_within: bool) -> None:
    assert narrow.within(wide) == is_within


def test_texts_with_quotes_survive_the_policy() -> None:
    job = Description(
        job="j", federation="f", kind="driven", owner='a "b"\n[[task]]\nname = "*"', seed=0,
        plan=so.FedAvg(so.nn.linear(5, 3), device='c"\\u0007\n').asks(None),
    )  # fmt: skip
    policy = Policy.parse(policy_for(job))
    assert refused(policy, job) == []
    assert all(rule.name != "*" for rule in policy.tasks)
    with pytest.raises(SoleraError):
        policy.check(JobFacts("", "", ""), "select.upload", 1, None, datetime.now())
    assert objection(job.plan, {}, "select.upload", 1, None)
