"""A headless Chromium: what a page says on the console, asks the network for, and looks like."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest

from solera.study.report.export import BROWSERS

CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="neither Chromium nor Chrome is here")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--enable-logging=stderr", "--v=0",
)  # fmt: skip


class Visit(NamedTuple):
    """``console`` lines, ``hosts`` that were asked for something, and the page's ``text``."""

    console: list[str]
    hosts: set[str]
    text: str


def visit(address: str, *options: str) -> Visit:
    """Open an address and note what happens."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "net.json"
        assert CHROMIUM is not None
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={folder}", f"--log-net-log={log}"]
        done = subprocess.run(
            [*command, *options, "--dump-dom", address],
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        events: list[Any] = json.loads(log.read_text())["events"]
    asked = [e["params"].get("url", "") for e in events if isinstance(e.get("params"), dict)]
    hosts = {urlsplit(url).netloc for url in asked} - {""}
    return Visit(
        [line for line in done.stderr.splitlines() if "CONSOLE" in line], hosts, done.stdout
    )


def screenshot(page: Path, picture: Path, width: int, height: int) -> Any:
    """The page as an array of pixels, rows × columns × RGB from 0 to 255."""
    from PIL import Image

    visit(page.as_uri(), f"--window-size={width},{height}", f"--screenshot={picture}")
    with Image.open(picture) as image:
        return np.asarray(image.convert("RGB")).astype(np.int16)
