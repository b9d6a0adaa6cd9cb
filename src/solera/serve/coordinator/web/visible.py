"""What a visitor may see, and pages that are made for one."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.base import NotFound
from solera.serve.coordinator.web.visitors import Visitor
from solera.serve.web.rendering import page
from solera.serve.web.requests import csrf_field


class Visible:
    """A coordinator's federations and jobs; those of others do not exist for a visitor."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.store = coordinator.store

    def own_federation(self, visitor: Visitor, name: str) -> str:
        if not visitor.sees(name) or name not in self.store.federations():
            raise NotFound(f"There is no federation {name!r}.")
        return name

    def own_job(self, visitor: Visitor, name: str) -> Any:
        job = self.store.job(name)
        if not visitor.sees(job.federation):
            raise NotFound(f"There is no job {name!r}.")
        return job


def shown_page(visitor: Visitor, template: str, status: int = 200, **content: Any) -> Response:
    """A page with the visitor's name and a form field that only this visitor can send."""
    shown = {"visitor": visitor, "csrf": csrf_field(visitor.csrf), **content}
    return page(template, status, **shown)


def problem_page(visitor: Visitor, status: int, title: str, problem: str) -> Response:
    """A page that says why something was not done."""
    sentence = problem[:1].upper() + problem[1:]
    return shown_page(visitor, "problem.html", status, title=title, problem=sentence)


def no_such_page() -> Response:
    """For a browser that asks for an address at which nothing is."""
    problem = "There is no page at this address."
    return page("problem.html", 404, visitor=None, title="Not found", problem=problem)


def takes(role: str, visitor: Visitor, where: str = "") -> str:
    """Why a visitor may not: the role that it takes."""
    own = f" of {visitor.federation}" if visitor.federation else ""
    return f"This takes the role {role}{where}; yours is {visitor.role}{own}."
