"""Make what `make docs` shows and nobody draws by hand: diagrams, plots, screenshots, the gallery.

    python tools/pictures.py docs/made

Screenshots are of real programs: a report of a run, and a coordinator with two agents whose job has
just ended, signed in to with Chromium. The gallery holds what the programs in `examples/` print.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from diagrams import DIAGRAMS

ROOT = Path(__file__).resolve().parents[1]
PLOTS = ("partition.svg", "tree.svg", "roc.svg")
SCREENS = ("report.png", "federations.png", "job.png", "health.png")
MADE = {*DIAGRAMS, *PLOTS, *SCREENS, "gallery.md"}
_SECONDS = 300
_SLOW = ("vertical_adult", "vertical_credit2")
"""Examples that take minutes: the gallery shows their programs alone."""
_POLICY = 'policy = "training"\n[approval]\nmode = "auto"\n'
_JOB = """
name = "readmission"
federation = "cardio"
owner = "dr. vega"
clients = 2
evaluate = "test"

[learner]
kind = "Pipeline"
steps = [{ kind = "FedScaler" }, { kind = "FedLinear", rounds = 12, epochs = 1, lr = 0.3 }]
"""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in DIAGRAMS.items():
        draw().save(folder / name)
    plot(folder)
    with tempfile.TemporaryDirectory() as work, browser() as page:
        shoot_report(page, Path(work), folder)
        shoot_coordinator(page, Path(work), folder)
    write_gallery(folder / "gallery.md")
    missing = MADE - {path.name for path in folder.iterdir()}
    assert not missing, missing


# --- plots ---


def plot(folder: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import solera as so

    X, y, _, _ = so.datasets.digits()
    fed = so.simulate(X, y, clients=10, partition=so.Dirichlet(0.3), seed=7)
    fed.data.plot().savefig(folder / "partition.svg", bbox_inches="tight")
    data = so.datasets.load("breast_cancer")
    fed = so.simulate(data.X, data.y, clients=5, test=0.3, seed=0, schema=data.schema)
    tree = so.FederatedTree(kind="cart", max_depth=3).fit(fed)
    tree.plot().savefig(folder / "tree.svg", bbox_inches="tight")
    model = so.Pipeline(so.FedScaler(), so.FedHEONN()).fit(fed)
    result = model.evaluate(fed, scores=True)
    result.scores.plot().savefig(folder / "roc.svg", bbox_inches="tight")


# --- screenshots ---


@contextmanager
def browser():
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("pictures need chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = opened.new_context(
            viewport={"width": 1280, "height": 480}, ignore_https_errors=True
        )
        yield context.new_page()
        opened.close()


def solera(*arguments: str, cwd: Path, **environment: str) -> str:
    command = [sys.executable, "-m", "solera.cli.app", *arguments]
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    done = subprocess.run(
        command, cwd=cwd, env=here, capture_output=True, text=True, timeout=_SECONDS
    )
    if done.returncode:
        raise SystemExit(f"solera {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def running(*arguments: str, cwd: Path):
    command = [sys.executable, "-m", "solera.cli.app", *arguments]
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=cwd, env=here, **quiet)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def shoot_report(page, work: Path, folder: Path) -> None:
    solera("demo", "--folder", "demo", cwd=work)
    page.goto((work / "demo" / "report.html").as_uri())
    page.set_viewport_size({"width": 1280, "height": 800})
    page.screenshot(path=folder / "report.png")
    page.set_viewport_size({"width": 1280, "height": 480})


def shoot_coordinator(page, work: Path, folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, password = f"https://127.0.0.1:{port}", secrets.token_urlsafe(16)
    solera("tls", "init", "--host", "127.0.0.1", cwd=work)
    pair = ("--certificate", "tls/coordinator.pem", "--key", "tls/coordinator.key")
    with ExitStack() as started:
        started.enter_context(running("serve", "--port", str(port), *pair, cwd=work))
        token = work / "coordinator" / "driver.token"
        wait(lambda: token.exists() and listens(port))
        driver = {
            "SOLERA_URL": url,
            "SOLERA_CA": "tls/ca.pem",
            "SOLERA_TOKEN": token.read_text(),
        }
        solera(
            "account", "add", "ada", "--role", "administrator", cwd=work, SOLERA_PASSWORD=password
        )
        (work / "policy.toml").write_text(_POLICY)
        for number, name in enumerate(("north", "south")):
            write_rows(work / f"{name}.csv", number)
            invitation = solera("invite", name, "--federation", "cardio", cwd=work, **driver)
            (work / f"{name}.invitation").write_text(invitation)
            joining = ("join", url, "--ca", "tls/ca.pem", "--token-file", f"{name}.invitation")
            rows = ("--data", f"{name}.csv", "--target", "ill", "--test", "0.3")
            own = ("--policy", "policy.toml", "--folder", name)
            started.enter_context(running(*joining, *rows, *own, cwd=work))
        (work / "job.toml").write_text(_JOB)
        solera("job", "start", "job.toml", "--follow", cwd=work, **driver)
        page.goto(f"{url}/sign-in")
        page.fill("input[name=name]", "ada")
        page.fill("input[name=password]", password)
        page.press("input[name=password]", "Enter")
        page.wait_for_url(re.compile(f"^{url}/(?!sign-in)"))
        for path, name in (
            ("/", "federations.png"),
            ("/jobs/readmission", "job.png"),
            ("/health", "health.png"),
        ):
            answer = page.goto(f"{url}{path}")
            assert answer is not None, path
            assert answer.status == 200, (path, answer.status)
            page.wait_for_timeout(500)
            page.screenshot(path=folder / name, full_page=True)


def write_rows(path: Path, seed: int) -> None:
    import numpy as np

    rng = np.random.default_rng(seed)
    age, bmi = rng.integers(30, 85, 400), rng.normal(26, 4, 400).round(1)
    ill = (age + bmi + rng.normal(0, 8, 400) > 88).astype(int)
    lines = [f"{a},{b},{i}" for a, b, i in zip(age, bmi, ill, strict=True)]
    path.write_text("\n".join(["age,bmi,ill", *lines]))


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait(ready) -> None:
    deadline = time.monotonic() + _SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit("the coordinator did not start")
        time.sleep(0.1)


# --- the gallery ---


def write_gallery(path: Path) -> None:
    """A page with every example: what it shows, what it prints, and its program."""
    parts = [
        "# Gallery",
        "Programs to start from, with what they print. `make docs` runs each of them.",
    ]
    for program in sorted((ROOT / "examples").glob("*.py")):
        title, text = about(program)
        parts += [f"## {title}", text, *output(program)]
        code = program.read_text(encoding="utf-8").split('"""', 2)[2].strip()
        parts.append(f'??? example "examples/{program.name}"\n{indent(fence("py", code))}')
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def about(program: Path) -> tuple[str, str]:
    """The first sentence of a program's docstring, and the rest without the command."""
    docstring = program.read_text(encoding="utf-8").split('"""')[1].strip()
    first, _, rest = docstring.partition("\n\n")
    rest = re.sub(r"^    python .*$", "", rest, flags=re.MULTILINE).strip()
    return " ".join(first.split()).rstrip("."), rest


def output(program: Path) -> list[str]:
    if program.stem in _SLOW:
        return ["It takes some minutes; run it yourself."]
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program)]
    try:
        with tempfile.TemporaryDirectory() as work:
            done = subprocess.run(
                command, env=here, cwd=work, capture_output=True, text=True, timeout=_SECONDS
            )
    except subprocess.TimeoutExpired:
        return [f"It takes more than {_SECONDS} s here; run it yourself."]
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1]
        return [f"Not run where this page was made: `{reason}`"]
    return [fence("text", done.stdout.rstrip())]


def fence(kind: str, text: str) -> str:
    return f"```{kind}\n{text}\n```"


def indent(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
