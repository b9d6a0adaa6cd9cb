"""The routes of the coordinator's pages.

A page is made for who is signed in: a federation that is not theirs does not exist for them, and
what their role may not do is neither shown nor done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, StreamingResponse

from solera.core.errors import SoleraError
from solera.serve.coordinator.metrics import Metrics
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.base import Conflict, Denied, NotFound
from solera.serve.coordinator.web.acts import Acts
from solera.serve.coordinator.web.health import Health
from solera.serve.coordinator.web.live import MOST, Live
from solera.serve.coordinator.web.looks import Looks
from solera.serve.coordinator.web.visible import problem_page, takes
from solera.serve.coordinator.web.visitors import COOKIE, SECONDS, SignIns, Visitor, is_own_form
from solera.serve.identity import token_hash
from solera.serve.web.rendering import HEADERS, asset, page
from solera.serve.web.requests import form_of, is_same_origin

View = Callable[..., Response]
Endpoint = Callable[[Request], Awaitable[Response]]
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
        self.store = coordinator.store
        self.sign_ins = SignIns(coordinator.store)
        self.news = Live(coordinator)
        health = Health(coordinator, metrics)
        look = Looks(coordinator, health, described)
        act = Acts(look, health)
        self.looks: dict[str, View] = {
            "/": look.federations,
            "/federations/{federation}": look.federation,
            "/federations/{federation}/new-job": look.new_job,
            "/federations/{federation}/data": look.data,
            "/federations/{federation}/epoch": look.epoch,
            "/federations/{federation}/compare": look.compare,
            "/closed/{jid}": look.closed,
            "/jobs/{job}": look.job,
            "/jobs/{job}/model": look.model,
            "/jobs/{job}/provenance": look.provenance,
            "/jobs/{job}/card": look.card,
            "/log": look.log,
            "/docs": look.docs,
            "/health": look.health,
            "/accounts": look.accounts,
        }
        self.acts: dict[str, tuple[str, View]] = {
            "/invite": ("administrator", act.invite),
            "/federations/{federation}/clients/{client}/revoke": ("administrator", act.revoke),
            "/federations/{federation}/jobs": ("researcher", act.start),
            "/jobs/{job}/cancel": ("researcher", act.cancel),
            "/accounts": ("administrator", act.add_account),
            "/accounts/{account}/remove": ("administrator", act.remove_account),
            "/tokens": ("administrator", act.add_token),
            "/tokens/{token}/revoke": ("administrator", act.revoke_token),
            "/health/verify": ("administrator", act.verify),
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

    def act(self, role: str, do: View) -> Endpoint:
        """Something that changes things: only by our own form, and only for that role."""

        async def answer(request: Request) -> Response:
            visitor = await self._visitor(request)
            if visitor is None:
                return RedirectResponse("/sign-in", 303, dict(HEADERS))
            form = await form_of(request)
            if not is_own_form(visitor, form.pop("csrf", "")) or not is_same_origin(request):
                return problem_page(visitor, 403, "Refused", _STALE_FORM)
            allowed = visitor.may_start if role == "researcher" else visitor.is_administrator
            if not allowed:
                return problem_page(visitor, 403, "Refused", takes(role, visitor))
            given = {**form, **request.path_params}
            return await run_in_threadpool(self._answered, do, visitor, given)

        return answer

    def _answered(self, view: View, visitor: Visitor, given: Any) -> Response:
        try:
            return view(visitor, given)
        except NotFound as error:
            return problem_page(visitor, 404, "Not found", error.message)
        except Denied as error:
            return problem_page(visitor, 403, "Refused", error.message)
        except Conflict as error:
            return problem_page(visitor, 409, "This cannot be done", error.message)
        except SoleraError as error:
            return problem_page(visitor, 400, "This cannot be done", error.message)

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
