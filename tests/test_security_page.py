"""What the security page says of the package agrees with the package."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_nothing_that_exists_is_denied() -> None:
    assert (ROOT / "src/solera/robust/rules.py").exists()
    assert (ROOT / "src/solera/serve/agent/ledger.py").exists()
    assert not re.search(r"no robust aggregation|no\s+ledger|no users with fewer rights", PAGE)


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((docs/[^)#]+)", PAGE)
    assert len(links) >= 5
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_figures_of_vertical_parties_are_the_same_on_both_pages() -> None:
    vertical = (ROOT / "docs/how-to/vertical.md").read_text(encoding="utf-8")
    attacks = (ROOT / "tests/learn/vertical/test_leakage.py").read_text(encoding="utf-8")
    assert "98.7 %" in PAGE
    assert "98.7 %" in vertical
    assert "(50, 0.987)" in attacks
