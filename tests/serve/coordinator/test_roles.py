"""Who may see and do what: every page and every action, for every role, in every federation."""

from __future__ import annotations

import time

import numpy as np
import pytest

import solera as so
from solera.serve.coordinator.store.closed_tables import TextRow
from solera.trust.board.text import JobText, canonical

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "argon2"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from starlette.routing import Match  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402
from store_rows import NOW, enrol  # noqa: E402

from solera.core.payload import encode  # noqa: E402
from solera.serve import wire  # noqa: E402
from solera.serve.coordinator.app import create_app  # noqa: E402
from solera.serve.coordinator.metrics import Metrics  # noqa: E402
from solera.serve.coordinator.store.blobs import Blobs  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.coordinator.store.tables import AccountRow, SessionRow, TokenRow  # noqa: E402
from solera.serve.coordinator.web.pages import pages_of  # noqa: E402
from solera.serve.identity import token_hash  # noqa: E402

PEOPLE = [
    (f"{role}-{federation}", role, None if federation == "all" else federation)
    for role in ("administrator", "researcher", "viewer")
    for federation in ("all", "cardio", "other")
]
"""The columns below: each role for all federations, for cardio, and for another."""

JID = "5e" * 32
LOOKS = {
    "/":                           "200 200 200  200 200 200  200 200 200",
    "/federations/cardio":         "200 200 404  200 200 404  200 200 404",
    "/federations/other":          "200 404 200  200 404 200  200 404 200",
    "/federations/cardio/new-job": "200 200 404  200 200 404  403 403 404",
    "/federations/cardio/data":    "200 200 404  200 200 404  200 200 404",
    "/federations/cardio/compare": "200 200 404  200 200 404  200 200 404",
    "/federations/cardio/epoch":   "200 200 404  200 200 404  200 200 404",
    f"/closed/{JID}":              "200 200 404  200 200 404  200 200 404",
    "/jobs/seen":                  "200 200 404  200 200 404  200 200 404",
    "/jobs/seen/live":             "200 200 404  200 200 404  200 200 404",
    "/jobs/seen/model":            "200 200 404  200 200 404  200 200 404",
    "/jobs/seen/card":             "200 200 404  200 200 404  200 200 404",
    "/jobs/seen/provenance":       "409 409 404  409 409 404  409 409 404",
    "/log":                        "200 200 200  200 200 200  200 200 200",
    "/docs":                       "200 200 200  200 200 200  200 200 200",
    "/health":                     "200 200 200  403 403 403  403 403 403",
    "/accounts":                   "200 403 403  403 403 403  403 403 403",
}  # fmt: skip
"""409: the statement about a model waits for the signed log, which this coordinator has none of."""

JOB = 'name = "new-{i}"\nfederation = "cardio"\nclients = 9\n[learner]\nkind = "FedHEONN"\n'
ACTS = {
    "/invite":                              "200 200 404  403 403 403  403 403 403",
    "/federations/cardio/clients/{i}/revoke": "303 303 404  403 403 403  403 403 403",
    "/federations/cardio/jobs":             "303 303 404  303 303 404  403 403 403",
    "/jobs/stop-{i}/cancel":                "303 303 404  303 303 404  403 403 403",
    "/accounts":                            "200 403 403  403 403 403  403 403 403",
    "/accounts/gone-{i}/remove":            "303 403 403  403 403 403  403 403 403",
    "/tokens":                              "200 403 403  403 403 403  403 403 403",
    "/tokens/old-{i}/revoke":               "303 403 403  403 403 403  403 403 403",
    "/health/verify":                       "303 303 303  403 403 403  403 403 403",
}  # fmt: skip
FIELDS = {
    "/invite": {"federation": "cardio", "client": "west-{i}"},
    "/federations/cardio/clients/{i}/revoke": {"reason": "x"},
    "/federations/cardio/jobs": {"toml": JOB},
    "/jobs/stop-{i}/cancel": {"reason": "x"},
    "/accounts": {"name": "eve-{i}", "role": "viewer"},
    "/tokens": {"name": "token-{i}", "role": "viewer", "days": "1"},
}
OPEN = {
    ("GET", "/assets/{name}"), ("GET", "/sign-in"), ("POST", "/sign-in"), ("POST", "/sign-out"),
}  # fmt: skip
"""For everybody: they show nothing of any federation and change nothing of anybody else."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A coordinator with two federations, nine people, and something for each of them to undo."""
    folder = tmp_path_factory.mktemp("roles")
    with Store(f"sqlite:///{folder / 'store.db'}") as store:
        blobs = Blobs(folder / "blobs")
        for federation in ("cardio", "other"):
            store.add_federation(federation)
            enrol(store, len(PEOPLE), federation)
        spec = blobs.put(encode({"learner": {"kind": "FedLinear"}, "toml": ""}))
        for id in ("seen", *(f"stop-{i}" for i in range(len(PEOPLE)))):
            store.add_job("cardio", wire.NewJob(id, "driven", spec, 0, ""), NOW)
            store.set_job_state(id, "running", "", NOW)
        text = canonical(JobText("training", so.FedGLM(), researcher="R", researcher_key=b"k" * 32))
        store.add_text(TextRow(JID, "cardio", "e" * 64, text, [], "waiting", "", NOW, NOW))
        store.publish("seen", wire.NewModel(blobs.put(model())), NOW)
        store.set_job_state("seen", "finished", "", NOW)
        for i, (name, role, federation) in enumerate(PEOPLE):
            store.add_account(AccountRow(name, "", role, federation, 0.0), "test")
            store.add_account(AccountRow(f"gone-{i}", "", "viewer", None, 0.0), "test")
            old = TokenRow(bytes([i] * 32), f"old-{i}", "viewer", None, NOW, NOW + 1e6)
            store.add_token(old, "test")
            session = SessionRow(token_hash(name), name, f"csrf of {name}", time.time() + 1e6)
            store.open_session(session, time.time())
        app = create_app(store, blobs, token_hash("token"))
        with TestClient(app, follow_redirects=False) as client:
            yield client


def model():
    rng = np.random.default_rng(0)
    fed = so.simulate(rng.normal(size=(40, 2)), np.arange(40) % 2, clients=2)
    return so.FedLinear(rounds=1).fit(fed).to_bytes()


def cookie(name):
    return {"Cookie": f"solera_session={name}"}


def filled(fields, i):
    return {key: text.replace("{i}", str(i)) for key, text in fields.items()}


def act(client, path, i, csrf, **headers):
    name = PEOPLE[i][0]
    fields = {"csrf": csrf, **filled(FIELDS.get(path, {}), i)}
    there = path.replace("{i}", str(i))
    return client.post(there, data=fields, headers={**cookie(name), **headers})


@pytest.mark.parametrize("path", LOOKS)
def test_every_page_is_for_those_whose_business_it_is(site, path):
    found = [site.get(path, headers=cookie(name)).status_code for name, _, _ in PEOPLE]
    assert found == [int(status) for status in LOOKS[path].split()]
    stranger = site.get(path)
    assert stranger.status_code == 404 or stranger.headers["location"] == "/sign-in"


@pytest.mark.parametrize("path", ACTS)
def test_every_action_is_for_its_role(site, path):
    found = [act(site, path, i, f"csrf of {name}") for i, (name, _, _) in enumerate(PEOPLE)]
    assert [answer.status_code for answer in found] == [int(s) for s in ACTS[path].split()]
    stranger = site.post(path.replace("{i}", "0"), data={"csrf": "csrf of administrator-all"})
    assert stranger.headers["location"] == "/sign-in"


def test_a_stolen_cookie_without_the_form_changes_nothing(site):
    """Neither a guess, nor the secret of somebody else, nor the right one from another site."""
    before = stored(site)
    for path in ACTS:
        assert act(site, path, 0, "guess").status_code == 403
        assert act(site, path, 0, f"csrf of {PEOPLE[1][0]}").status_code == 403
        from_elsewhere = {"Origin": "https://evil.example"}
        assert act(site, path, 0, f"csrf of {PEOPLE[0][0]}", **from_elsewhere).status_code == 403
    assert stored(site) == before


def stored(site):
    store = site.app.state.coordinator.store
    return store.clients("cardio"), store.jobs("cardio"), store.accounts(), store.tokens()


def test_no_page_and_no_action_is_missing_here(site):
    """A route that is added without a line above fails."""
    coordinator = site.app.state.coordinator
    pages = pages_of(coordinator, Metrics(coordinator), dict).routes
    there = {(method, route.path) for route in pages for method in route.methods - {"HEAD"}}
    tried = set()
    for method, paths in (("GET", LOOKS), ("POST", ACTS)):
        for path in paths:
            scope = {"type": "http", "method": method, "path": path.replace("{i}", "0")}
            matching = [r for r in pages if r.matches(scope)[0] is Match.FULL]
            tried.add((method, matching[0].path))
    assert there == tried | OPEN
    assert all(len(line.split()) == len(PEOPLE) for line in [*LOOKS.values(), *ACTS.values()])
