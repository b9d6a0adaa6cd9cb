"""The documentation that `make docs` built, opened from the disk in a browser."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

SITE = Path(__file__).parents[1] / "site"
SECONDS = 120_000


@pytest.fixture
def page():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    if not (SITE / "index.html").exists():
        pytest.skip("make docs has not been run")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(SECONDS)
        yield page
        browser.close()


@pytest.mark.slow
def test_search_works_from_the_disk_and_nothing_is_loaded_from_elsewhere(page):
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((SITE / "index.html").as_uri())
    page.click("input.md-search__input")
    page.keyboard.type("restore a backup")
    page.locator('.md-search-result__link[href*="how-to/operate"]').first.wait_for()
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
    assert not errors


@pytest.mark.slow
def test_every_page_has_its_pictures(page):
    for path in (
        SITE / "index.html",
        SITE / "explanation" / "roles.html",
        SITE / "how-to" / "pages.html",
        SITE / "how-to" / "data-owner.html",
    ):
        page.goto(path.as_uri())
        pictures = page.locator("article img")
        assert pictures.count()
        for number in range(pictures.count()):
            picture = pictures.nth(number)
            picture.scroll_into_view_if_needed()
            assert picture.evaluate("each => each.naturalWidth") > 100, picture.get_attribute("src")
            assert re.search(r"\w", picture.get_attribute("alt"))
