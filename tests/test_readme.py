"""Every Python example in the documentation runs as it is printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from solera.core import task
from solera.core.component import Component
from solera.study.files.reader import parse

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
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

    def run(self) -> None:
        """Execute in a namespace of its own; tracebacks name the page and the line."""
        namespace = {"__name__": "example"}
        for block in (*self.before, self):
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, block.page, "exec"), namespace)


def examples(page: Path) -> list[Example]:
    """The blocks fenced with ```python, except those marked ```python no-run.

    A block after the comment ``<!-- continues -->`` goes on where the one before it stopped.
    """
    found: list[Example] = []
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match["flag"].strip() == "no-run":
            continue
        assert not match["flag"].strip(), f"{page}: unknown flag {match['flag']!r}"
        line = text.count("\n", 0, match.start("code")) + 1
        before = (*found[-1].before, found[-1]) if match["continues"] else ()
        found.append(Example(page, line, match["code"], before))
    return found


@pytest.fixture
def own_registries(monkeypatch):
    """Tasks and components that an example defines are gone afterwards."""
    monkeypatch.setattr(task, "_tasks", dict(task._tasks))
    monkeypatch.setattr(Component, "registry", dict(Component.registry))


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
    """The two commands and an example of at most ten statements come first."""
    first, second = examples(ROOT / "README.md")[:2]
    screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    assert {"make demo", "make test"} <= {line[:9] for line in screen}
    assert first.line + first.code.count("\n") <= 30
    assert len([line for line in first.code.splitlines() if line]) <= 10
    assert len([line for line in second.code.splitlines() if line]) <= 30


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}"
