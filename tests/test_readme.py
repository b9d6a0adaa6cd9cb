"""Every Python example in the documentation runs as it is printed."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core import task
from solera.core.component import Component
from solera.study.files.reader import parse

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "made"),
]
FENCE = re.compile(
    r"(?P<continues><!-- continues -->\n+)?^```python(?P<flag>[^\n]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Example:
    """A block of a page; ``before`` are the blocks that it continues."""

    page: Path
    line: int
    code: str
    before: tuple[Example, ...] = ()

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def run(self) -> dict[str, Any]:
        """Execute in a namespace of its own; tracebacks name the page and the line."""
        namespace: dict[str, Any] = {"__name__": "example"}
        for block in (*self.before, self):
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, block.page, "exec", dont_inherit=True), namespace)
        return namespace


def examples(page: Path) -> list[Example]:
    """The blocks fenced with ```python, except those marked ```python no-run.

    A block after the comment ``<!-- continues -->`` goes on where the one before it stopped.
    """
    found: list[Example] = []
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match["flag"].strip() == "no-run":
            continue
        flag = match["flag"].strip()
        assert not flag or flag.startswith('title="'), f"{page}: unknown flag {flag!r}"
        line = text.count("\n", 0, match.start("code")) + 1
        before = (*found[-1].before, found[-1]) if match["continues"] else ()
        found.append(Example(page, line, match["code"], before))
    return found


@pytest.fixture
def own_registries(monkeypatch):
    """Tasks, components and variables that an example defines are gone afterwards."""
    monkeypatch.setattr(task, "_tasks", dict(task._tasks))
    monkeypatch.setattr(Component, "registry", dict(Component.registry))
    environment = dict(os.environ)
    yield
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


@pytest.mark.parametrize("example", [e for page in PAGES for e in examples(page)], ids=str)
@pytest.mark.usefixtures("own_registries")
def test_example_runs(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example.run()


def test_run_files_are_valid():
    for page in PAGES:
        for text in re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            parse(text, file=str(page), name="example")


def test_first_screen_of_the_readme():
    """The two commands and ten lines come first, then both sides of k-means in 25."""
    first, second = examples(ROOT / "README.md")[:2]
    screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    assert {"make demo", "make test"} <= {line[:9] for line in screen}
    assert first.line + first.code.count("\n") <= 30
    assert len([line for line in first.code.splitlines() if line]) <= 10
    assert len([line for line in second.code.splitlines() if line]) <= 25


def lloyd(X: Any, centroids: Any, rounds: int) -> Any:
    """k-means on all rows in one place, with sums that a task of before would have returned."""
    for _ in range(rounds):
        nearest = ((X[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
        member = np.eye(len(centroids))[nearest]
        counts = member.sum(axis=0)[:, None]
        centroids = np.where(counts > 0, member.T @ X / np.maximum(counts, 1), centroids)
    return centroids


@pytest.mark.usefixtures("own_registries")
def test_the_second_example_gives_the_same_centroids_with_and_without_a_policy():
    """Owners who trust the driver change nothing."""
    names = examples(ROOT / "README.md")[1].run()
    X, TinyKMeans = names["X"], names["TinyKMeans"]
    expected = lloyd(X, np.random.default_rng(1).normal(size=(3, 2)), 10)
    for policy in (None, "trusted"):
        fed = so.simulate(X, clients=8, seed=1, policy=policy)
        model = TinyKMeans(k=3).fit(fed)
        np.testing.assert_allclose(model.centroids_, expected, rtol=0, atol=1e-9)
        assert "warnings" not in model.history_[-1]


def made() -> set[str]:
    """The names of what `make docs` makes."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("pictures").MADE
    finally:
        sys.path.remove(str(ROOT / "tools"))
        for name in ("pictures", "diagrams"):
            sys.modules.pop(name, None)


def test_links_lead_somewhere():
    names = made()
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "made/" in link:  # by `make docs`
                assert Path(link).name in names, f"{page.relative_to(ROOT)}: {link}"
            elif "://" not in link:
                assert (page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}"


SHELL = re.compile(r"^```sh[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"(?:^|[|;(]\s*|\$\(|until |sudo (?:-u \w+ )?)solera ([^|;<>#\n)]*)", re.MULTILINE
)


def test_commands_and_options_of_the_pages_exist():
    """Every ``solera …`` in a block of shell: the command is there, and has these options."""
    import typer

    from solera.cli.app import app

    root = typer.main.get_command(app)
    checked = 0
    for page in PAGES:
        for block in SHELL.findall(page.read_text(encoding="utf-8")):
            for line in COMMAND.findall(block.replace("\\\n", " ")):
                command, words = root, line.split()
                while words and hasattr(command, "commands") and words[0] in command.commands:
                    command = command.commands[words.pop(0)]
                named = f"{page.relative_to(ROOT)}: solera {line}"
                options = {name for p in command.params for name in p.opts}
                assert not hasattr(command, "commands") or words[:1] == ["--version"], named
                for word in words:
                    if re.match(r"--?[a-z]", word):
                        assert word.partition("=")[0] in {*options, "--help", "--version"}, named
                checked += 1
    assert checked > 50


def test_every_public_name_is_in_the_reference():
    """Names in `solera` and its namespaces: the module that defines each has a place there."""
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: (solera[\w.]*)$", pages, re.MULTILINE))
    names = {(so.__name__, name): getattr(so, name) for name in dir(so) if name[0] != "_"}
    for space in [value for value in names.values() if inspect.ismodule(value)]:
        listed = getattr(space, "__all__", [n for n in dir(space) if n[0] != "_"])
        names |= {(space.__name__, name): getattr(space, name) for name in listed}
    missing = []
    for (space, name), value in names.items():
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue  # a constant stands with the module it is in
        home = value.__module__
        if home.startswith("solera.") and not {home, f"{home}.{value.__name__}", space} & shown:
            missing.append(f"{space}.{name} ({home})")
    assert not missing, missing
    overview = (ROOT / "docs" / "reference" / "index.md").read_text()
    front = {name for name in dir(so) if name[0] != "_" and name != "learn"}
    assert front == set(re.findall(r"`so\.(\w+)`", overview))
