"""The page of a job: what clients told of themselves, what they judged, and what it took."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "argon2"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from starlette.testclient import TestClient  # noqa: E402
from store_rows import NOW, add_job, add_reply, enrol  # noqa: E402

from solera.core.federation import Federation  # noqa: E402
from solera.core.payload import encode  # noqa: E402
from solera.core.statistics import t_interval, wilcoxon_holm  # noqa: E402
from solera.engines.local import LocalEngine  # noqa: E402
from solera.evaluation.curves import GRID, curves_of  # noqa: E402
from solera.serve import wire  # noqa: E402
from solera.serve.coordinator.app import create_app  # noqa: E402
from solera.serve.coordinator.store.blobs import Blobs  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.coordinator.store.tables import AccountRow, SessionRow  # noqa: E402
from solera.serve.driver.managed import numbers  # noqa: E402
from solera.serve.identity import token_hash  # noqa: E402
from solera.serve.wire import NewNote  # noqa: E402
from solera.study.run.metrics_table import lines_text  # noqa: E402

EVIL = "<img src=x onerror=alert(1)>"


# --- what clients told, in the store ---


def tell(store, job, round, losses):
    store.take_note(store.job(job), NewNote("round", {"round": round, "loss": 1.0}, losses), NOW)


def test_of_many_rounds_some_are_read_spread_over_all(store, job):
    for i in range(25):
        tell(store, job, i, {0: 1 / (i + 1), 1: 0.5})
    all_ = [facts["round"] for _, facts in store.told(job, 100)]
    assert all_ == list(range(25))
    some = store.told(job, 10)
    assert [facts["round"] for _, facts in some] == [0, 3, 6, 9, 12, 15, 18, 21, 24]
    assert some[-1][1]["loss"] == {"0": 1 / 25, "1": 0.5}
    assert [facts["round"] for _, facts in store.told(job, 10, some[-2][0])] == [22, 23, 24]
    assert len(store.rounds(job)) == 25


def test_what_a_client_told_goes_with_it_and_is_in_no_log(store, job):
    tell(store, job, 0, {0: 0.25, 1: 0.125, 99: 0.5})
    assert store.told(job, 9)[0][1]["loss"] == {"0": 0.25, "1": 0.125}, "nobody is number 99"
    assert "0.125" not in str(store.events(job=job))
    store.forget_client("cardio", 1)
    tell(store, job, 1, {0: 0.25, 1: 0.125})
    assert [facts["loss"] for _, facts in store.told(job, 9)] == [{"0": 0.25}, {"0": 0.25}]


# --- the page ---


@pytest.fixture
def site(tmp_path):
    """A coordinator without agents, somebody who looks at it, and what it stores."""
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.add_federation("cardio")
        enrol(store, 5)
        blobs = Blobs(tmp_path / "blobs")
        store.add_account(AccountRow("vera", "", "viewer", "cardio", 0.0), "test")
        session = SessionRow(token_hash("cookie"), "vera", "csrf", time.time() + 1e6)
        store.open_session(session, time.time())
        app = create_app(store, blobs, token_hash("token"))
        with TestClient(app, cookies={"solera_session": "cookie"}) as client:
            yield client, store, blobs


def begin(store, blobs, id, kind="managed", learner="FedLinear", **other):
    described = encode({"learner": {"kind": learner}, "toml": "# a job"})
    add_job(store, id, kind=kind, spec=blobs.put(described), **other)
    return store.set_job_state(id, "running", "", NOW)


def ask(store, blobs, job, seq, task, payload, answers):
    """An ask that these clients have answered."""
    new = wire.NewAsk(
        task=task, version=1, payload=blobs.put(encode(payload)), round=0, clients=list(answers)
    )
    store.add_ask(job, seq, new, NOW)
    for client, answer in answers.items():
        frame = encode(answer)
        told = {"status": "ok", "digest": blobs.put(frame), "size": len(frame)}
        reply = wire.NewReply(**told, signature="ab" * 64)
        add_reply(store, job, seq, "cardio", client, reply, NOW)


@pytest.fixture(scope="module")
def judged():
    """A model, how clients judge it, and what each of them told: the asks themselves."""
    rng = np.random.default_rng(3)
    sizes = [60, 80, 100, 4]
    X = rng.normal(size=(sum(sizes), 3))
    y = np.where(X[:, 0] + rng.normal(size=len(X)) > 0, "yes", f"no {EVIL}")
    data = so.data.FederatedData(X, y, np.concatenate([[0], np.cumsum(sizes)]))
    fed = Federation(LocalEngine(data))
    model = so.FedLinear(rounds=3).fit(fed)
    asked = {}
    original = fed.ask

    def remember(task, payload, **options):
        replies = original(task, payload, **options)
        each = {reply.client: reply.payload for reply in original(task, payload, **options)}
        asked[task.name] = payload, each
        return replies

    fed.ask = remember
    return model.evaluate(fed, "train", scores=True), asked


def test_a_judgement_says_whose_rows_it_rests_on(site):
    """On the page, in the card, in the table that compares jobs, and of older notes as well."""
    client, store, blobs = site
    lacks = so.metrics.Figure(
        0.883, metric="accuracy", part="test", rows=83, clients=5, asked=6, absent=1, withheld=11
    )
    facts = {"accuracy": lacks, "macro_f1": 0.5}
    store.take_note(begin(store, blobs, "told"), NewNote("evaluated", numbers(facts)), NOW)
    loss = so.metrics.Figure(
        0.25, metric="loss", part="train", rows=90, clients=5, asked=6, absent=1
    )
    job = begin(store, blobs, "lost")
    store.take_note(job, NewNote("round", numbers({"round": 0.0, "loss": loss})), NOW)
    store.set_job_state("lost", "finished", "", NOW)
    page = client.get("/jobs/told").text
    assert lacks.whose in page
    assert "<td>rows that are not known</td>" in page
    assert str(loss) in client.get("/jobs/lost").text
    assert '"loss":0.25' in client.get("/jobs/lost").text  # which the curves are drawn from
    compared = client.get("/federations/cardio/compare?job.told=on&job.lost=on").text
    assert "0.883 (rows missing)" in compared
    (event,) = store.events(job="told", event="evaluated")
    assert event.facts["accuracy"]["withheld"] == 11
    assert event.facts["macro_f1"] == 0.5


def test_confusion_spread_and_curves_are_those_of_the_evaluation(site, judged):
    client, store, blobs = site
    evaluation, asked = judged
    job = begin(store, blobs, "risk")
    store.take_note(job, NewNote("evaluated", numbers(evaluation.metrics)), NOW)
    for seq, (task, (payload, answers)) in enumerate(asked.items()):
        ask(store, blobs, "risk", seq, task, payload, answers)
    text = client.get("/jobs/risk").text
    confusion = re.findall(r'class="number shade-\d">([^<]+)<', text)
    counts = evaluation.counts["confusion"].reshape(-1).tolist()
    assert confusion == [str(n) if n >= 5 else "&lt; 5" for n in counts]
    line = re.search(r'<th scope="row">accuracy</th>(.*?)</tr>', text)[1]
    all_, low, middle, high = re.findall(r'<td class="number">([^<]+)</td>', line)
    assert all_ == evaluation["accuracy"].number
    assert "<td>244 train rows of 4 clients</td>" in line
    area = re.search(r'<th scope="row">AUROC</th>(.*?)</tr>', text)[1]
    assert ", positive class yes</td>" in area
    large = [evaluation.clients[i]["accuracy"] for i in range(3)]
    assert [low, middle, high] == [f"{v:.4g}" for v in (min(large), sorted(large)[1], max(large))]
    each = text.partition("Every client")[2].partition("</details>")[0]
    assert "site 2" in each
    assert "site 3" not in each, "its rows are too few"
    lines = re.findall(r'<polyline class="all" points="([^"]+)"', text)
    heights = [(250 - float(point.split(",")[1])) / 240 for point in lines[0].split()]
    assert heights == pytest.approx(curves_of(evaluation.scores).roc, abs=1e-3)
    assert len(heights) == len(GRID)
    assert len(lines) == 3
    assert text.count('class="client"') == 9, "three pictures with three clients"
    assert text.count('class="band"') == 2
    assert EVIL not in text
    assert "&lt;img src=x" in text


def test_answers_that_are_no_counts_are_left_out(site, judged):
    client, store, blobs = site
    payload, answers = judged[1]["learner.evaluate"]
    strange = [
        None, [], {"confusion": 3}, {"confusion": np.zeros((2, 2)), "rows": "x"},
        {"confusion": np.full((2, 2), np.nan), "rows": 4},
        {"confusion": np.zeros((3, 2), np.int64), "rows": 4},
        {"rows": 9, "masked": np.arange(4, dtype=np.uint64)},
    ]  # fmt: skip
    for seq, answer in enumerate(strange):
        begin(store, blobs, f"odd{seq}")
        odd = {**answers, 4: answer}
        ask(store, blobs, f"odd{seq}", 0, "learner.evaluate", payload, odd)
        counted = {0: answer, 1: answer}
        ask(store, blobs, f"odd{seq}", 1, "learner.score_counts", answer, counted)
        page = client.get(f"/jobs/odd{seq}")
        assert page.status_code == 200, answer
        assert "shade-" in page.text, "what the others counted"


def told_of(text):
    block = re.search(r'<script type="application/json" id="told">(.*?)</script>', text)[1]
    return json.loads(block)


def test_losses_of_clients_are_shown_as_told(site):
    client, store, blobs = site
    job = begin(store, blobs, "risk")
    for i in range(3):
        note = NewNote("round", {"round": i, "loss": 0.5, "bytes_up": 700.0}, {0: 0.25, 1: 0.75})
        store.take_note(job, note, NOW)
    text = client.get("/jobs/risk").text
    told = told_of(text)
    assert told["rounds"] == [{"round": i, "loss": {"0": 0.25, "1": 0.75}} for i in range(3)]
    assert told["names"]["0"] == "site 0"
    assert 'id="no-clients" hidden' in text
    assert "2.1 kB" in text, "the bytes of all rounds"


SENTENCES = {
    "added up in secret": ({"round": 0, "secure": 1.0}, "running"),
    "tell no loss of their own": ({"round": 0}, "running"),
    "No round has ended yet": (None, "running"),
    "has told of no rounds": (None, "cancelled"),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_where_there_are_no_losses_of_clients_the_page_says_why(site, sentence):
    client, store, blobs = site
    facts, state = SENTENCES[sentence]
    job = begin(store, blobs, "risk")
    if facts is not None:
        store.take_note(job, NewNote("round", facts), NOW)
    if state != "running":
        store.set_job_state("risk", state, "", NOW)
    text = client.get("/jobs/risk").text
    assert sentence in text
    assert 'id="about-clients" hidden' in text
    assert told_of(text)["rounds"] == []


def test_energy_bytes_and_epsilon_say_who_counted_them(site):
    client, store, blobs = site
    job = begin(store, blobs, "risk")
    before = client.get("/jobs/risk").text
    assert "Energy</dt><dd>told when the job has ended" in before
    assert "counted at their owners" in before
    store.take_note(job, NewNote("round", {"round": 0, "epsilon": 0.4}), NOW)
    store.take_note(job, NewNote("round", {"round": 1, "epsilon": 0.75}), NOW)
    cost = {"wh": 0.125, "bytes_down": 81920.0, "bytes_up": 1024.0}
    store.take_note(job, NewNote("cost", cost), NOW)
    text = client.get("/jobs/risk").text
    assert "0.125 Wh at the coordinator" in text
    assert "81.9 kB" in text
    assert "1.02 kB" in text
    assert "ε = 0.75 so far" in text
    begin(store, blobs, "own", kind="driven")
    assert (
        "Energy</dt><dd>counted by the program that drives the job" in client.get("/jobs/own").text
    )


# --- other pages ---


def test_an_address_without_a_page_says_so_to_people_and_to_programs(site):
    client = site[0]
    answer = client.get("/nowhere", headers={"Accept": "text/html,*/*"})
    assert answer.status_code == 404
    assert "There is no page at this address." in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert client.get("/v1/nowhere").json() == {"detail": "Not Found"}


def test_the_log_is_searched_by_the_name_of_a_client(site):
    client, store, _ = site
    store.log("refused", NOW, federation="cardio", client=2, reason="too few rows")
    store.log("refused", NOW, federation="cardio", client=3, reason="another one")
    for wanted in ("site 2", "2"):
        text = client.get("/log", params={"client": wanted}).text
        assert "too few rows" in text
        assert "<td>site 2</td>" in text
        assert "another one" not in text
    assert "No event fits." in client.get("/log", params={"client": "nobody"}).text


def test_a_client_is_shown_with_the_version_that_it_said_last(site):
    client, store, _ = site
    store.heartbeat("cardio", 1, NOW, "", (1, "0" * 64), "2.7.1")
    store.heartbeat("cardio", 1, NOW, "", (1, "0" * 64))
    assert client.get("/federations/cardio").text.count("<td>2.7.1</td>") == 1


# --- comparison ---


def test_pipelines_are_compared_by_what_differs_in_their_steps(site):
    client, store, blobs = site
    for lam in (0.1, 0.5):
        steps = [{"kind": "FedScaler"}, {"kind": "FedHEONN", "lam": lam, "rule": "argmax"}]
        described = {"learner": {"kind": "Pipeline", "steps": steps}, "toml": ""}
        add_job(store, f"lam-{lam}", spec=blobs.put(encode(described)))
    chosen = {"job.lam-0.1": "on", "job.lam-0.5": "on"}
    text = client.get("/federations/cardio/compare", params=chosen).text
    assert text.count("<td>FedScaler → FedHEONN</td>") == 2
    assert '<th scope="row">FedHEONN: lam</th><td>0.1</td><td>0.5</td>' in text
    assert "rule" not in text
    assert "FedScaler → FedHEONN" in client.get("/jobs/lam-0.1").text


def test_pairs_of_learners_are_compared_over_the_seeds_that_both_have(site):
    client, store, blobs = site
    scores = {"FedLinear": [0.7, 0.72, 0.75, 0.9], "FedHEONN": [0.6, 0.65, 0.61]}
    chosen = {}
    for learner, values in scores.items():
        for seed, score in enumerate(values):
            id = f"{learner.lower()}-{seed}"
            chosen[f"job.{id}"] = "on"
            job = begin(store, blobs, id, learner=learner, seed=seed)
            store.take_note(job, NewNote("evaluated", {"accuracy": score}), NOW)
    text = client.get("/federations/cardio/compare", params=chosen).text
    pair = text.partition("FedLinear – FedHEONN")[2]
    shown = re.findall(r'<td class="number">([^<]+)</td>', pair)[:3]
    table = np.array([scores["FedLinear"][:3], scores["FedHEONN"]]).T
    gap = t_interval(table[:, 0] - table[:, 1])
    assert shown == [
        f"{gap.estimate:+.4g}", f"{gap.low:+.4g} … {gap.high:+.4g}",
        f"{wilcoxon_holm(table)[0].p_holm:.3g}",
    ]  # fmt: skip
    assert "jobs: accuracy over 3 seeds" in text
    alone = {key: "on" for key in chosen if "linear" in key}
    text = client.get("/federations/cardio/compare", params=alone).text
    assert "It takes two learners" in text
    assert "0.7675</td>" in text, "the mean over four seeds"


def study(folder, federation, name, scores):
    """The table of a study, as studies write it: learner → accuracy by seed."""
    lines = [
        ({"cell": 0, "learner": learner, "scheme": "federated", "seed": seed}, line)
        for learner, values in scores.items()
        for seed, value in enumerate(values)
        for line in (("clients", None, None, "accuracy", value), ("test", None, None, "f1", 0.123))
    ]
    (folder / federation / name).mkdir(parents=True)
    (folder / federation / name / "metrics.csv").write_text(lines_text(lines))


def test_studies_stand_beside_jobs(site, tmp_path):
    client, store, blobs = site
    client.app.state.coordinator.studies = folder = tmp_path / "studies"
    scores = {"FedLinear": [0.7, 0.72, 0.75], f"tree {EVIL}": [0.6, 0.65, 0.61]}
    study(folder, "cardio", "cohort", scores)
    study(folder, "neuro", "secret", {"FedGLM": [0.5, 0.6]})
    study(folder, "cardio", "once", {"FedKMeans": [0.25]})
    (folder / "cardio" / "broken").mkdir()
    (folder / "cardio" / "broken" / "metrics.csv").write_text("part,value\nclients,many\n")
    for seed in range(2):
        job = begin(store, blobs, f"real-{seed}", learner="FedHEONN", seed=seed)
        store.take_note(job, NewNote("evaluated", {"accuracy": 0.8 + seed / 10}), NOW)

    page = client.get("/federations/cardio/compare").text
    assert "cohort" in page
    assert "secret" not in page, "it is another federation's"
    chosen = ["job.real-0", "job.real-1", "study.cohort", "study.once", "study.broken"]
    tried = ["study.secret", "study.../neuro/secret", "study.nowhere"]
    page = client.get(
        "/federations/cardio/compare", params=dict.fromkeys(chosen + tried, "on")
    ).text
    number = r'<td class="number">(.*?)</td>'
    line = r'<tr><td>(.*?)</td><th scope="row">(.*?)</th><td>(.*?)</td>'
    rows = re.findall(line + 2 * number, page)
    assert [(of, name[:9], metric, seeds, mean) for of, name, metric, seeds, mean in rows] == [
        ("jobs", "FedHEONN", "accuracy", "2", "0.85"),
        ("cohort", "FedLinear", "accuracy", "3", "0.7233"),
        ("cohort", "tree &lt;", "accuracy", "3", "0.62"),
        ("once", "FedKMeans", "accuracy", "1", "0.25"),
    ]
    table = np.array(list(scores.values())).T
    gap = t_interval(table[:, 0] - table[:, 1])
    assert f"{gap.low:+.4g} … {gap.high:+.4g}" in page
    assert "cohort: accuracy over 3 seeds" in page
    assert "broken cannot be read: its metrics.csv is not one of a study" in page
    assert "FedGLM" not in page
    assert EVIL not in page
