"""The pages that only show something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Response

from solera.core.payload import decode
from solera.serve.closed_view import closed_view
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.base import Denied, NotFound
from solera.serve.coordinator.web import downloads, views
from solera.serve.coordinator.web.comparing import MOST as MOST_JOBS
from solera.serve.coordinator.web.comparing import compare
from solera.serve.coordinator.web.data import data
from solera.serve.coordinator.web.epochs import epoch_shown
from solera.serve.coordinator.web.forms import about, job_file, learners, parameters
from solera.serve.coordinator.web.health import Health
from solera.serve.coordinator.web.judged import judged
from solera.serve.coordinator.web.studies import studies
from solera.serve.coordinator.web.visible import Visible, shown_page, takes
from solera.serve.coordinator.web.visitors import Visitor


class Looks(Visible):
    """One method for each page: who looks, and what the address says."""

    def __init__(
        self, coordinator: Coordinator, health: Health, described: Callable[[], dict[str, Any]]
    ) -> None:
        super().__init__(coordinator)
        self._health = health
        self._described = described

    def federations(self, visitor: Visitor, given: Any) -> Response:
        self.coordinator.write_heard()
        shown = [
            views.federation_card(self.store, name)
            for name in self.store.federations()
            if visitor.sees(name)
        ]
        return shown_page(visitor, "federations.html", federations=shown)

    def federation(self, visitor: Visitor, given: Any) -> Response:
        name = self.own_federation(visitor, given["federation"])
        self.coordinator.write_heard()
        return shown_page(visitor, "federation.html", **views.federation(self.store, name))

    def job(self, visitor: Visitor, given: Any) -> Response:
        job = self.own_job(visitor, given["job"])
        described = decode(self.coordinator.blobs.read(job.spec))
        shown = views.job(self.store, job, described)
        names = self.store.client_names(job.federation)
        return shown_page(visitor, "job.html", **shown, **judged(self.coordinator, job, names))

    def data(self, visitor: Visitor, given: Any) -> Response:
        name = self.own_federation(visitor, given["federation"])
        return shown_page(visitor, "data.html", **data(self.coordinator, name))

    def epoch(self, visitor: Visitor, given: Any) -> Response:
        name = self.own_federation(visitor, given["federation"])
        return shown_page(visitor, "epoch.html", **epoch_shown(self.store, name))

    def closed(self, visitor: Visitor, given: Any) -> Response:
        self.coordinator.write_heard()
        job = self.store.closed_job(given["jid"])
        if not visitor.sees(job.federation):
            raise NotFound(f"There is no closed job {given['jid'][:16]!r}.")
        view = closed_view(job)
        return shown_page(visitor, "closed.html", view=view, federation=job.federation)

    def compare(self, visitor: Visitor, given: Any) -> Response:
        name = self.own_federation(visitor, given["federation"])
        jobs = {job.id: job for job in reversed(self.store.jobs(name))}
        chosen = [jobs[key[4:]] for key in given if key[:4] == "job." and key[4:] in jobs][
            :MOST_JOBS
        ]
        there = studies(self.coordinator.studies, name)
        looked_at = {study: there[study] for study in there if f"study.{study}" in given}
        found = compare(self.coordinator, chosen, looked_at)
        return shown_page(
            visitor, "compare.html", name=name, all=list(jobs.values()), most=MOST_JOBS,
            chosen=[job.id for job in chosen], studies=list(there), looked_at=list(looked_at),
            curves_json=views.safe_json(found["curves"]), **found,
        )  # fmt: skip

    def docs(self, visitor: Visitor, given: Any) -> Response:
        document = self._described()
        return shown_page(
            visitor, "docs.html", document=document, operations=views.operations(document)
        )

    def new_job(self, visitor: Visitor, given: Any) -> Response:
        federation = self.own_federation(visitor, given["federation"])
        if not visitor.may_start:
            raise Denied(takes("researcher", visitor))
        kinds = learners()
        kind = given.get("kind", "")
        if kind and kind not in kinds:
            raise NotFound(f"no learner {kind!r}")
        clients = given.get("clients", "")
        count = int(clients) if clients.isdigit() and 0 < int(clients) < 10**6 else 1
        own = {key[2:]: text for key, text in given.items() if key.startswith("p.")}
        toml, like = "", given.get("like", "")
        if like:
            described = decode(self.coordinator.blobs.read(self.own_job(visitor, like).spec))
            toml = described.get("toml", "")
        elif kind and given.get("name"):
            toml = job_file(federation, kind, given["name"], count, visitor.name, own)
        return shown_page(
            visitor, "new_job.html", federation=federation, kinds=kinds, kind=kind,
            about=about(kind) if kind else "", name=given.get("name", ""), clients=count, like=like,
            parameters=parameters(kind, own) if kind else [], toml=toml, problem="",
        )  # fmt: skip

    def model(self, visitor: Visitor, given: Any) -> Response:
        return downloads.model(self.coordinator, self.own_job(visitor, given["job"]))

    def provenance(self, visitor: Visitor, given: Any) -> Response:
        return downloads.provenance(self.coordinator, self.own_job(visitor, given["job"]))

    def card(self, visitor: Visitor, given: Any) -> Response:
        return downloads.card(self.coordinator, self.own_job(visitor, given["job"]))

    def log(self, visitor: Visitor, given: Any) -> Response:
        return shown_page(visitor, "log.html", **views.log(self.coordinator, visitor, given))

    def health(self, visitor: Visitor, given: Any) -> Response:
        if not visitor.is_administrator:
            raise Denied(takes("administrator", visitor))
        return shown_page(visitor, "health.html", facts=self._health.facts())

    def accounts(self, visitor: Visitor, given: Any, shown: Any = None) -> Response:
        if not visitor.is_administrator or visitor.federation is not None:
            raise Denied(takes("administrator", visitor, " of all federations"))
        return shown_page(
            visitor, "accounts.html", accounts=self.store.accounts(), tokens=self.store.tokens(),
            shown=shown,
        )  # fmt: skip
