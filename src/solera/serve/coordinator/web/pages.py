"""The routes of the coordinator's pages.

A page is made for who is signed in: a federation that is not theirs does not exist for them, and
what their role may not do is neither shown nor done.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, StreamingResponse

from solera.core.errors import SoleraError, UsageError
from solera.core.payload import decode
from solera.serve.coordinator.metrics import Metrics
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.base import Conflict, Denied, NotFound
from solera.serve.coordinator.store.tables import TokenRow
from solera.serve.coordinator.web import downloads, views
from solera.serve.coordinator.web.comparing import MOST as MOST_JOBS
from solera.serve.coordinator.web.comparing import compare
from solera.serve.coordinator.web.data import data
from solera.serve.coordinator.web.forms import about, job_file, learners, parameters
from solera.serve.coordinator.web.health import Health
from solera.serve.coordinator.web.judged import judged
from solera.serve.coordinator.web.live import MOST, Live
from solera.serve.coordinator.web.studies import studies
from solera.serve.coordinator.web.visitors import (
    COOKIE,
    SECONDS,
    SignIns,
    Visitor,
    is_own_form,
    new_account,
)
from solera.serve.identity import new_token, token_hash
from solera.serve.job_spec import parse_job
from solera.serve.web.rendering import HEADERS, asset, page
from solera.serve.web.requests import csrf_field, form_of, is_same_origin, to
from solera.serve.wire import NAME, NewJob

View = Callable[..., Response]
Endpoint = Callable[[Request], Awaitable[Response]]
_INVITE_SECONDS = 7 * 24 * 3600.0
_STALE_FORM = (
    "This form was not made for you by this site, or you have signed in anew since. Nothing was "
    "changed. Go back, load the page again and send the form once more."
)


def pages_of(
    coordinator: Coordinator, metrics: Metrics, described: Callable[[], dict[str, Any]]
) -> APIRouter:
    """All pages; what they change is written to the log with who changed it.

    ``described`` gives the OpenAPI document of the service.
    """
    routes = APIRouter(include_in_schema=False)
    site = Site(coordinator, metrics, described)
    routes.add_api_route("/assets/{name}", site.asset, methods=["GET"])
    routes.add_api_route("/sign-in", site.sign_in_page, methods=["GET"])
    routes.add_api_route("/sign-in", site.sign_in, methods=["POST"])
    routes.add_api_route("/sign-out", site.sign_out, methods=["POST"])
    for path, view in site.looks.items():
        routes.add_api_route(path, site.look(view), methods=["GET"])
    for path, (role, act) in site.acts.items():
        routes.add_api_route(path, site.act(role, act), methods=["POST"])
    routes.add_api_route("/jobs/{job}/live", site.live, methods=["GET"])
    return routes


class Site:
    """The pages over one coordinator."""

    def __init__(
        self, coordinator: Coordinator, metrics: Metrics, described: Callable[[], dict[str, Any]]
    ) -> None:
        self.coordinator = coordinator
        self._health = Health(coordinator, metrics)
        self._described = described
        self.store = coordinator.store
        self.sign_ins = SignIns(coordinator.store)
        self.news = Live(coordinator)
        self.looks: dict[str, View] = {
            "/": self.federations,
            "/federations/{federation}": self.federation,
            "/federations/{federation}/new-job": self.new_job,
            "/federations/{federation}/data": self.data,
            "/federations/{federation}/compare": self.compare,
            "/jobs/{job}": self.job,
            "/jobs/{job}/model": self.model,
            "/jobs/{job}/provenance": self.provenance,
            "/jobs/{job}/card": self.card,
            "/log": self.log,
            "/docs": self.docs,
            "/health": self.health,
            "/accounts": self.accounts,
        }
        self.acts: dict[str, tuple[str, View]] = {
            "/invite": ("administrator", self.invite),
            "/federations/{federation}/clients/{client}/revoke": ("administrator", self.revoke),
            "/federations/{federation}/jobs": ("researcher", self.start),
            "/jobs/{job}/cancel": ("researcher", self.cancel),
            "/accounts": ("administrator", self.add_account),
            "/accounts/{account}/remove": ("administrator", self.remove_account),
            "/tokens": ("administrator", self.add_token),
            "/tokens/{token}/revoke": ("administrator", self.revoke_token),
            "/health/verify": ("administrator", self.verify),
        }

    # --- who looks ---

    async def asset(self, name: str) -> Response:
        found = asset(name)
        return Response(status_code=404) if found is None else found

    async def sign_in_page(self) -> Response:
        return page("sign_in.html", problem="")

    async def sign_in(self, request: Request) -> Response:
        form = await form_of(request)
        name = form.get("name", "")[:80]
        if not is_same_origin(request):
            return page("sign_in.html", 403, problem="The form came from another site.")
        if (pause := self.sign_ins.pause(name)) > 0:
            said = f"Too many tries. Wait {pause:.0f} seconds and try again."
            return page("sign_in.html", 429, problem=said)
        cookie = await run_in_threadpool(self.sign_ins.sign_in, name, form.get("password", ""))
        if cookie is None:
            return page("sign_in.html", 403, problem="Name or password are not right.")
        answer = RedirectResponse("/", 303, dict(HEADERS))
        secure = request.url.scheme == "https"
        answer.set_cookie(
            COOKIE, cookie, max_age=int(SECONDS), httponly=True, samesite="strict", secure=secure
        )
        return answer

    async def sign_out(self, request: Request) -> Response:
        visitor = await self._visitor(request)
        form = await form_of(request)
        if visitor is not None and is_own_form(visitor, form.get("csrf", "")):
            cookie = request.cookies[COOKIE]
            await run_in_threadpool(self.store.close_session, token_hash(cookie))
        answer = RedirectResponse("/sign-in", 303, dict(HEADERS))
        answer.delete_cookie(COOKIE)
        return answer

    async def _visitor(self, request: Request) -> Visitor | None:
        return await run_in_threadpool(self.sign_ins.visitor, request.cookies.get(COOKIE))

    def look(self, view: View) -> Endpoint:
        """A page for who is signed in; others are shown the way in."""

        async def answer(request: Request) -> Response:
            visitor = await self._visitor(request)
            if visitor is None:
                return RedirectResponse("/sign-in", 303, dict(HEADERS))
            given = {**request.query_params, **request.path_params}
            return await run_in_threadpool(self._answered, view, visitor, given)

        return answer

    def act(
        self, role: str, do: Callable[..., Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Something that changes things: only by our own form, and only for that role."""

        async def answer(request: Request) -> Response:
            visitor = await self._visitor(request)
            if visitor is None:
                return RedirectResponse("/sign-in", 303, dict(HEADERS))
            form = await form_of(request)
            if not is_own_form(visitor, form.pop("csrf", "")) or not is_same_origin(request):
                return _problem(visitor, 403, "Refused", _STALE_FORM)
            allowed = visitor.may_start if role == "researcher" else visitor.is_administrator
            if not allowed:
                return _problem(visitor, 403, "Refused", _takes(role, visitor))
            given = {**form, **request.path_params}
            return await run_in_threadpool(self._answered, do, visitor, given)

        return answer

    def _answered(self, view: View, visitor: Visitor, given: Any) -> Response:
        try:
            return view(visitor, given)
        except NotFound as error:
            return _problem(visitor, 404, "Not found", error.message)
        except Denied as error:
            return _problem(visitor, 403, "Refused", error.message)
        except Conflict as error:
            return _problem(visitor, 409, "This cannot be done", error.message)
        except SoleraError as error:
            return _problem(visitor, 400, "This cannot be done", error.message)

    def _own_federation(self, visitor: Visitor, name: str) -> str:
        if not visitor.sees(name) or name not in self.store.federations():
            raise NotFound(f"There is no federation {name!r}.")
        return name

    def _own_job(self, visitor: Visitor, name: str) -> Any:
        job = self.store.job(name)
        if not visitor.sees(job.federation):
            raise NotFound(f"There is no job {name!r}.")
        return job

    # --- pages ---

    def federations(self, visitor: Visitor, given: Any) -> Response:
        self.coordinator.write_heard()
        shown = [
            views.federation_card(self.store, name)
            for name in self.store.federations()
            if visitor.sees(name)
        ]
        return _page(visitor, "federations.html", federations=shown)

    def federation(self, visitor: Visitor, given: Any) -> Response:
        name = self._own_federation(visitor, given["federation"])
        self.coordinator.write_heard()
        return _page(visitor, "federation.html", **views.federation(self.store, name))

    def job(self, visitor: Visitor, given: Any) -> Response:
        job = self._own_job(visitor, given["job"])
        described = decode(self.coordinator.blobs.read(job.spec))
        shown = views.job(self.store, job, described)
        names = self.store.client_names(job.federation)
        return _page(visitor, "job.html", **shown, **judged(self.coordinator, job, names))

    def data(self, visitor: Visitor, given: Any) -> Response:
        name = self._own_federation(visitor, given["federation"])
        return _page(visitor, "data.html", **data(self.coordinator, name))

    def compare(self, visitor: Visitor, given: Any) -> Response:
        name = self._own_federation(visitor, given["federation"])
        jobs = {job.id: job for job in reversed(self.store.jobs(name))}
        chosen = [jobs[key[4:]] for key in given if key[:4] == "job." and key[4:] in jobs][
            :MOST_JOBS
        ]
        there = studies(self.coordinator.studies, name)
        looked_at = {study: there[study] for study in there if f"study.{study}" in given}
        found = compare(self.coordinator, chosen, looked_at)
        return _page(
            visitor, "compare.html", name=name, all=list(jobs.values()), most=MOST_JOBS,
            chosen=[job.id for job in chosen], studies=list(there), looked_at=list(looked_at),
            curves_json=views.safe_json(found["curves"]), **found,
        )  # fmt: skip

    def docs(self, visitor: Visitor, given: Any) -> Response:
        document = self._described()
        return _page(visitor, "docs.html", document=document, operations=views.operations(document))

    def new_job(self, visitor: Visitor, given: Any) -> Response:
        federation = self._own_federation(visitor, given["federation"])
        if not visitor.may_start:
            raise Denied(_takes("researcher", visitor))
        kinds = learners()
        kind = given.get("kind", "")
        if kind and kind not in kinds:
            raise NotFound(f"no learner {kind!r}")
        clients = given.get("clients", "")
        count = int(clients) if clients.isdigit() and 0 < int(clients) < 10**6 else 1
        own = {key[2:]: text for key, text in given.items() if key.startswith("p.")}
        toml, like = "", given.get("like", "")
        if like:
            described = decode(self.coordinator.blobs.read(self._own_job(visitor, like).spec))
            toml = described.get("toml", "")
        elif kind and given.get("name"):
            toml = job_file(federation, kind, given["name"], count, visitor.name, own)
        return _page(
            visitor, "new_job.html", federation=federation, kinds=kinds, kind=kind,
            about=about(kind) if kind else "", name=given.get("name", ""), clients=count, like=like,
            parameters=parameters(kind, own) if kind else [], toml=toml, problem="",
        )  # fmt: skip

    def model(self, visitor: Visitor, given: Any) -> Response:
        return downloads.model(self.coordinator, self._own_job(visitor, given["job"]))

    def provenance(self, visitor: Visitor, given: Any) -> Response:
        return downloads.provenance(self.coordinator, self._own_job(visitor, given["job"]))

    def card(self, visitor: Visitor, given: Any) -> Response:
        return downloads.card(self.coordinator, self._own_job(visitor, given["job"]))

    def log(self, visitor: Visitor, given: Any) -> Response:
        return _page(visitor, "log.html", **views.log(self.coordinator, visitor, given))

    def health(self, visitor: Visitor, given: Any) -> Response:
        if not visitor.is_administrator:
            raise Denied(_takes("administrator", visitor))
        return _page(visitor, "health.html", facts=self._health.facts())

    def accounts(self, visitor: Visitor, given: Any, shown: Any = None) -> Response:
        if not visitor.is_administrator or visitor.federation is not None:
            raise Denied(_takes("administrator", visitor, " of all federations"))
        return _page(
            visitor, "accounts.html", accounts=self.store.accounts(), tokens=self.store.tokens(),
            shown=shown,
        )  # fmt: skip

    async def live(self, request: Request, job: str, known: int = 0, told: int = 0) -> Response:
        """Server-sent events of one job."""
        visitor = await self._visitor(request)
        stored = await run_in_threadpool(self.store.job, job)
        if visitor is None or not visitor.sees(stored.federation):
            raise NotFound(f"no job {job!r}")
        if self.news.open >= MOST:
            return Response(status_code=503, headers={**HEADERS, "Retry-After": "30"})
        news = self.news.news(job, max(0, known), max(0, told))
        return StreamingResponse(news, media_type="text/event-stream", headers=dict(HEADERS))

    # --- acts ---

    def invite(self, visitor: Visitor, given: Any) -> Response:
        federation, client = given.get("federation", ""), given.get("client", "")
        _check_names(federation, client)
        if not visitor.sees(federation):
            raise NotFound(f"There is no federation {federation!r}.")
        self.store.add_federation(federation)
        token = f"{federation}/{client}/{new_token()}"
        self.store.add_invite(federation, client, token_hash(token), time.time() + _INVITE_SECONDS)
        self._acted(visitor, f"invited {client}", federation=federation)
        file = f"{federation}-{client}.invitation"
        command = (
            "pip install 'solera[serve]'\n"
            f"solera join COORDINATOR-ADDRESS --ca ca.pem --token-file {file} \\\n"
            "  --data patients.csv --target ill --policy policy.toml\n"
        )
        return _page(
            visitor, "invited.html", federation=federation, client=client, command=command,
            token=token, file=file,
        )  # fmt: skip

    def revoke(self, visitor: Visitor, given: Any) -> Response:
        federation = self._own_federation(visitor, given["federation"])
        if not str(given["client"]).isdigit():
            raise NotFound("no such client")
        self.store.revoke(federation, int(given["client"]), given.get("reason", ""))
        self.coordinator.forget_clients()
        self._acted(visitor, f"revoked client {given['client']}", federation=federation)
        return to(f"/federations/{federation}")

    def start(self, visitor: Visitor, given: Any) -> Response:
        federation = self._own_federation(visitor, given["federation"])
        text = given.get("toml", "").replace("\r\n", "\n")
        spec = parse_job(text, file="the file", name="")
        if spec.federation != federation:
            raise UsageError(f"the file is for {spec.federation!r}, not for {federation!r}")
        if self.coordinator.log_problem:
            raise Conflict(f"no job can begin: {self.coordinator.log_problem}")
        described = spec.describe(text)
        digest = self.coordinator.blobs.put(described.to_bytes())
        new = NewJob.of(described, id=described.job, spec=digest)
        job = self.store.add_job(federation, new, time.time())
        self._acted(visitor, f"started {job.id}", federation=federation, job=job.id)
        return to(f"/jobs/{job.id}")

    def cancel(self, visitor: Visitor, given: Any) -> Response:
        job = self._own_job(visitor, given["job"])
        self.store.set_job_state(job.id, "cancelled", given.get("reason", ""), time.time())
        self.coordinator.notifier.notify()
        self._acted(visitor, f"cancelled {job.id}", federation=job.federation, job=job.id)
        return to(f"/jobs/{job.id}")

    def add_account(self, visitor: Visitor, given: Any) -> Response:
        self.accounts(visitor, given)
        password = new_token()[:20]
        account = new_account(given.get("name", ""), password, _role(given), self._limit(given))
        self.store.add_account(account, visitor.name)
        shown = {"what": f"The password of {account.name}.", "secret": password}
        return self.accounts(visitor, given, shown)

    def remove_account(self, visitor: Visitor, given: Any) -> Response:
        self.accounts(visitor, given)
        if given["account"] == visitor.name:
            raise Conflict("You cannot remove your own account.")
        self.store.remove_account(given["account"], visitor.name, time.time())
        return to("/accounts")

    def add_token(self, visitor: Visitor, given: Any) -> Response:
        self.accounts(visitor, given)
        name, days = given.get("name", "").strip(), given.get("days", "30")
        if not name or len(name) > 80 or not days.isdigit() or not 1 <= int(days) <= 365:
            raise UsageError("a token has a name and 1 to 365 days")
        secret, now = new_token(), time.time()
        token = TokenRow(
            token_hash(secret), name, _role(given), self._limit(given), now, now + int(days) * 86400
        )
        self.store.add_token(token, visitor.name)
        self.coordinator.forget_tokens()
        return self.accounts(visitor, given, {"what": f"The token {name}.", "secret": secret})

    def revoke_token(self, visitor: Visitor, given: Any) -> Response:
        self.accounts(visitor, given)
        self.store.revoke_token(given["token"], visitor.name, time.time())
        self.coordinator.forget_tokens()
        return to("/accounts")

    def verify(self, visitor: Visitor, given: Any) -> Response:
        self._health.verify()
        self._acted(visitor, "verified the signed log")
        return to("/health")

    def _limit(self, given: Any) -> str | None:
        federation: str = given.get("federation", "").strip()
        if federation and federation not in self.store.federations():
            raise NotFound(f"There is no federation {federation!r}.")
        return federation or None

    def _acted(self, visitor: Visitor, what: str, **about: Any) -> None:
        facts = {"actor": visitor.name, "role": visitor.role}
        self.store.log("act", time.time(), reason=what, facts=facts, **about)


# --- small things ---


def _page(visitor: Visitor, template: str, status: int = 200, **content: Any) -> Response:
    shown = {"visitor": visitor, "csrf": csrf_field(visitor.csrf), **content}
    return page(template, status, **shown)


def _problem(visitor: Visitor, status: int, title: str, problem: str) -> Response:
    sentence = problem[:1].upper() + problem[1:]
    return _page(visitor, "problem.html", status, title=title, problem=sentence)


def no_such_page() -> Response:
    """For a browser that asks for an address at which nothing is."""
    problem = "There is no page at this address."
    return page("problem.html", 404, visitor=None, title="Not found", problem=problem)


def _takes(role: str, visitor: Visitor, where: str = "") -> str:
    own = f" of {visitor.federation}" if visitor.federation else ""
    return f"This takes the role {role}{where}; yours is {visitor.role}{own}."


def _role(given: Any) -> Any:
    role = given.get("role", "")
    if role not in ("viewer", "researcher", "administrator"):
        raise UsageError(f"there is no role {role!r}")
    return role


def _check_names(*names: str) -> None:
    for name in names:
        if not re.fullmatch(NAME, name):
            raise UsageError(f"{name!r} is not a name; one is like cardio-2")
