"""The owner's pages: a view over the functions that the commands call.

Whoever started the page may do here what the commands do on this machine: look, change the policy,
leave. Decisions about jobs are signed with the key of the person who was named at the start.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from solera.core.errors import SoleraError, UsageError
from solera.core.private_files import write_file
from solera.serve.agent import home, leaving
from solera.serve.agent.approvals import Approver, Verdict
from solera.serve.agent.copies import open_copy
from solera.serve.agent.decisions import decide
from solera.serve.agent.held_jobs import HeldJobs
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.agent.started import recall
from solera.serve.agent.withdrawn import withdraw
from solera.serve.audit import AuditLog
from solera.serve.identity import Identity
from solera.serve.owner import views
from solera.serve.owner.access import COOKIE, Access
from solera.serve.owner.closed import closed_jobs, closed_shown
from solera.serve.owner.epochs import epoch_shown
from solera.serve.owner.record import Records, read_policy, spent
from solera.serve.owner.report import Facts, report
from solera.serve.owner.rows import RowReader
from solera.serve.web.rendering import asset, page
from solera.serve.web.requests import csrf_field, download, form_of, to

View = Callable[[dict[str, str]], Response]
_COPY = re.compile(r"[A-Za-z0-9._-]+\.copy")


class OwnerSite:
    """The pages over one client's folder.

    Parameters
    ----------
    folder: the client's.
    policy: its file; where the agent was started with one by default.
    approver: whose decisions are signed here; None: nobody decides here.
    copies_key: opens copies of what left; None: only their sizes are shown.
    """

    def __init__(
        self,
        folder: Path,
        policy: Path | None = None,
        approver: Approver | None = None,
        copies_key: Path | None = None,
    ) -> None:
        started = recall(folder)
        self.folder = folder
        self.place = home.read_place(folder)
        self.identity = Identity.load(folder)
        self.policy_path = policy or (Path(started.policy) if started else None)
        self.approver, self.copies_key = approver, copies_key
        self.access = Access()
        self._records = Records(folder, self.identity.sign_key)
        self._rows = RowReader(folder, started)
        self._gone = False

    def app(self) -> Starlette:
        """The service; see :meth:`Access.link` for how it is opened."""
        looks: dict[str, View] = {
            "/": self.today,
            "/waiting": self.waiting,
            "/closed/{hash}": self.closed,
            "/epoch": self.epoch,
            "/left": self.left,
            "/left/report.pdf": self.pdf,
            "/copies/{name}": self.copy,
            "/leave": self.leave,
        }
        acts: dict[str, View] = {
            "/policy": self.change_policy,
            "/rows": self.read_rows,
            "/decide/{hash}": self.decide,
            "/withdraw-person": self.withdraw_person,
            "/leave": self.delete,
        }
        routes = [
            Route("/open", self.open, methods=["GET"]),
            Route("/assets/{name}", self.asset, methods=["GET"]),
            *(Route(path, self._look(view), methods=["GET"]) for path, view in looks.items()),
            *(Route(path, self._act(view), methods=["POST"]) for path, view in acts.items()),
        ]
        return Starlette(routes=routes)

    # --- who looks ---

    async def open(self, request: Request) -> Response:
        """The link: it works once."""
        key = request.query_params.get("key", "")
        cookie = self.access.open(key) if self.access.is_here(request) else None
        if cookie is None:
            return self._closed()
        answer = to("/")
        answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict")
        return answer

    async def asset(self, request: Request) -> Response:
        found = asset(request.path_params["name"]) if self.access.is_here(request) else None
        return Response(status_code=404) if found is None else found

    def _look(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if not (self.access.is_here(request) and self.access.is_known(request)):
                return self._closed()
            given = {**request.query_params, **request.path_params}
            return await run_in_threadpool(self._answered, view, given)

        return answer

    def _act(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if not (self.access.is_here(request) and self.access.is_known(request)):
                return self._closed()
            form = await form_of(request)
            if not self.access.is_own_form(request, form.pop("csrf", "")):
                return self._closed()
            given = {**form, **request.path_params}
            return await run_in_threadpool(self._answered, view, given)

        return answer

    def _closed(self) -> Response:
        said = (
            "This page is for whoever started it. Open the link that `solera owner` printed; it "
            "works once, in one browser. For another browser, start `solera owner` again."
        )
        return page("owner_problem.html", 403, known=False, title="Closed", problem=said, hint="")

    def _answered(self, view: View, given: dict[str, str]) -> Response:
        try:
            if self._gone and view not in (self.left, self.pdf):
                raise UsageError("this client has left its federation")
            return view(given)
        except SoleraError as error:
            said = {"problem": error.message, "hint": error.hint or ""}
            return self._page("owner_problem.html", 400, title="This cannot be done", **said)

    def _page(self, template: str, status: int = 200, **content: Any) -> Response:
        shown = {"known": True, "place": self.place, "csrf": csrf_field(self.access.csrf)}
        return page(template, status, **shown, **content)

    @property
    def _policy(self) -> OwnerPolicy:
        return read_policy(self.policy_path)

    # --- today ---

    def today(self, given: dict[str, str], **edited: Any) -> Response:
        record = self._records.read()
        text = self._policy_text()
        shown: dict[str, Any] = {"words": None, "broken": "", "rows": None}
        try:
            policy = self._policy
            shown |= {"words": views.sentences(policy), "rows": self._rows.look(policy)}
        except UsageError as error:
            shown["broken"] = str(error)
        held: list[Any] = [*HeldJobs(self.folder / home.HELD).read()]
        held += [job for job in closed_jobs(self.folder) if job["held"]]
        editor = {"text": text, "result": None, **edited}
        return self._page(
            "owner_today.html", working=home.is_working(self.folder), held=held,
            activity=views.activity(record), path=self.policy_path, before=_digest(text),
            editor=editor, **shown,
        )  # fmt: skip

    def _policy_text(self) -> str:
        if self.policy_path is None or not self.policy_path.exists():
            return ""
        return self.policy_path.read_text(encoding="utf-8")

    def read_rows(self, given: dict[str, str]) -> Response:
        self._rows.forget()
        return to("/")

    def change_policy(self, given: dict[str, str]) -> Response:
        """Check another policy, and save it if that is asked."""
        text = given.get("text", "").replace("\r\n", "\n")
        result: dict[str, Any] = {"problem": "", "words": None, "saved": False}
        try:
            policy = OwnerPolicy.parse(text, file="the policy")
            result["words"] = views.sentences(policy)
            if given.get("do") == "save":
                self._save(text, policy, given.get("before", ""))
                result["saved"] = True
        except SoleraError as error:
            result["problem"] = str(error)
        return self.today({}, text=text, result=result)

    def _save(self, text: str, policy: OwnerPolicy, before: str) -> None:
        if self.policy_path is None:
            raise UsageError("which file the policy is in is not known", hint="--policy FILE")
        old = self._policy_text()
        if _digest(old) != before:
            raise UsageError("the file was changed meanwhile", hint="look at it again")
        audit = AuditLog(self.folder / home.LOG, self.identity)
        audit.append("policy saved", before=_digest(old), now=policy.hash())
        mode = self.policy_path.stat().st_mode & 0o777 if self.policy_path.exists() else 0o644
        write_file(self.policy_path, text.encode(), mode, overwrite=True)

    def epoch(self, given: dict[str, str]) -> Response:
        shown = epoch_shown(self.folder, self.place, self.identity)
        return self._page("owner_epoch.html", **shown)

    # --- waiting ---

    def waiting(self, given: dict[str, str]) -> Response:
        policy = self._policy
        jobs = [
            views.waiting(job, policy, self.place.federation)
            for job in views.undecided(self.folder, policy, self.place.federation)
        ]
        decisions = self._records.read().decisions()
        return self._page(
            "owner_waiting.html", jobs=jobs, decisions=decisions, approver=self.approver,
            approval=policy.approval, closed=closed_jobs(self.folder),
        )  # fmt: skip

    def closed(self, given: dict[str, str]) -> Response:
        """One closed job."""
        shown = closed_shown(self.folder, self.place, self.identity, given["hash"])
        return self._page("owner_closed.html", approver=self.approver, **shown)

    def decide(self, given: dict[str, str]) -> Response:
        if self.approver is None:
            raise UsageError("nobody decides here", hint="start `solera owner --key ana.key`")
        verdict = given.get("verdict", "")
        if verdict not in ("approved", "rejected", "withdrawn"):
            raise UsageError(f"{verdict!r} is no decision")
        reason, until = given.get("reason", "").strip(), given.get("until", "")
        if verdict == "rejected" and not reason:
            raise UsageError("a rejection has a reason", hint="whoever asked is told")
        terms: dict[str, Any] = {"reason": reason}
        if verdict == "approved" and until:
            terms["until"] = _local(until)
        decided: Verdict = verdict  # type: ignore[assignment]
        decide(self.folder, self._policy, self.approver, given["hash"], decided, **terms)
        return to("/waiting")

    # --- what left ---

    def left(self, given: dict[str, str]) -> Response:
        record = self._records.read()
        shown = views.left(record, self.folder / home.COPIES, given.get("job", ""))
        return self._page(
            "owner_left.html", spent=self._spent(), opens=self.copies_key is not None,
            key=self.identity.sign_key.hex(), **shown,
        )  # fmt: skip

    def _spent(self) -> Any:
        try:
            return spent(self.folder, self._policy)
        except UsageError:
            return spent(self.folder, None)

    def copy(self, given: dict[str, str]) -> Response:
        """The content of what left."""
        if self.copies_key is None:
            raise UsageError("copies are sealed", hint="start `solera owner --copies-key FILE`")
        path = self.folder / home.COPIES / given["name"]
        if not _COPY.fullmatch(given["name"]) or not path.is_file():
            raise UsageError(f"there is no copy {given['name']!r}")
        about, content = open_copy(path, self.copies_key)
        return self._page("owner_copy.html", copy=about, content=views.in_short(content))

    def pdf(self, given: dict[str, str]) -> Response:
        try:
            policy = self._policy
        except UsageError:
            policy = None
        key = self.identity.sign_key.hex()
        facts = Facts(self.place, key, self._records.read(), self._spent(), policy)
        content = report(facts, self.identity)
        return download(content, f"what-left-{self.place.name}.pdf", "application/pdf")

    # --- leaving ---

    def leave(self, given: dict[str, str]) -> Response:
        held, problem, unit = None, "", None
        try:
            unit = self._policy.data.unit
            held = leaving.holdings(self.folder)
        except SoleraError as error:
            problem = str(error)
        files = leaving.files_of(self.folder)
        working = home.is_working(self.folder)
        return self._page(
            "owner_leave.html", held=held, files=files, problem=problem, working=working, unit=unit
        )

    def withdraw_person(self, given: dict[str, str]) -> Response:
        person = given.get("person", "").strip()
        if not person:
            raise UsageError("who withdraws?")
        withdraw(self.folder, person)
        self._rows.forget()
        return to("/leave")

    def delete(self, given: dict[str, str]) -> Response:
        if given.get("federation") != self.place.federation:
            raise UsageError(
                "nothing was deleted", hint=f"write {self.place.federation} to say that you mean it"
            )
        receipt = leaving.leave(self.folder, log=False)
        self._gone = True
        shown = (
            "" if receipt is None else msgspec.json.format(msgspec.json.encode(receipt)).decode()
        )
        return self._page("owner_gone.html", receipt=shown, key=self.identity.sign_key.hex())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _local(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise UsageError(f"{text!r} is no time", hint="like 2026-12-31T18:00") from None
