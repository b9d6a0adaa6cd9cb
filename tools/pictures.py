"""Make what `make docs` shows and nobody draws by hand: diagrams, plots, screenshots, the gallery.

    python tools/pictures.py docs/made

Screenshots are of real programs: a report of a run, a coordinator with three agents whose jobs have
just ended, signed in to with Chromium, and the page of an owner who has a job to decide about. The
gallery holds what the programs in `examples/` print.
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
OWNER_SCREENS = ("owner-today.png", "owner-waiting.png", "owner-left.png")
SCREENS = ("report.png", "federations.png", "job.png", "compare.png", "health.png", *OWNER_SCREENS)
MADE = {*DIAGRAMS, *PLOTS, *SCREENS, "gallery.md"}
_SECONDS = 300
_SLOW = ("vertical_adult", "vertical_credit2")
"""Examples that take minutes: the gallery shows their programs alone."""
_POLICY = 'policy = "trusted"\n[approval]\nmode = "auto"\n'
_ASKS = 'policy = "trusted"\n[approval]\nmode = "ask"\n[approval.approvers]\nana = "{key}"\n'
_HOSPITALS = ("north", "south", "east")
_JOB = """
name = "{name}"
federation = "cardio"
owner = "dr. vega"
clients = 3
seed = {seed}
evaluate = "test"
scores = true

[learner]
kind = "Pipeline"
steps = [{{ kind = "FedScaler" }}, {learner}]
"""
_LINEAR = '{ kind = "FedLinear", rounds = 12, epochs = 1, lr = 0.3 }'
_HEONN = '{ kind = "FedHEONN" }'
_JOBS = (
    ("readmission", _LINEAR, 0),
    ("linear-1", _LINEAR, 1),
    ("heonn-0", _HEONN, 0),
    ("heonn-1", _HEONN, 1),
)
_TALLEST = 2400
"""Pixels: of a longer page the beginning is shown."""


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
def running(*arguments: str, cwd: Path, log: str | None = None):
    command = [sys.executable, "-m", "solera.cli.app", *arguments]
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    with open(os.devnull if log is None else cwd / log, "w") as said:
        process = subprocess.Popen(command, cwd=cwd, env=here, stdout=said, stderr=said)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=_SECONDS)


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
        for number, name in enumerate(_HOSPITALS):
            (work / f"{name}.toml").write_text(_POLICY)
            write_rows(work / f"{name}.csv", number)
            invitation = solera("invite", name, "--federation", "cardio", cwd=work, **driver)
            (work / f"{name}.invitation").write_text(invitation)
            joining = ("join", url, "--ca", "tls/ca.pem", "--token-file", f"{name}.invitation")
            rows = ("--data", f"{name}.csv", "--target", "ill", "--test", "0.3")
            own = ("--policy", f"{name}.toml", "--folder", name)
            started.enter_context(running(*joining, *rows, *own, cwd=work))
        for name, learner, seed in _JOBS:
            start_job(work, driver, name, learner, seed, "--follow")
        page.goto(f"{url}/sign-in")
        page.fill("input[name=name]", "ada")
        page.fill("input[name=password]", password)
        page.press("input[name=password]", "Enter")
        page.wait_for_url(re.compile(f"^{url}/(?!sign-in)"))
        compared = "&".join(f"job.{name}=on" for name, _, _ in _JOBS)
        for path, name in (
            ("/", "federations.png"),
            ("/jobs/readmission", "job.png"),
            (f"/federations/cardio/compare?{compared}", "compare.png"),
            ("/health", "health.png"),
        ):
            shoot(page, f"{url}{path}", folder / name)
        shoot_owner(page, work, folder, driver)


def start_job(work: Path, driver, name: str, learner: str, seed: int, *options: str) -> None:
    (work / f"{name}.job").write_text(_JOB.format(name=name, learner=learner, seed=seed))
    solera("job", "start", f"{name}.job", *options, cwd=work, **driver)


def shoot_owner(page, work: Path, folder: Path, driver) -> None:
    """The page of north's owner, who now wants to be asked and has a job to decide about."""
    key = re.search(r"[0-9a-f]{64}", solera("approver", "new", "ana", "--key", "ana.key", cwd=work))
    assert key is not None
    (work / "north.toml").write_text(_ASKS.format(key=key[0]))
    start_job(work, driver, "follow-up", _LINEAR, 5)
    held = work / "north" / "held.json"
    wait(lambda: held.exists() and "follow-up" in held.read_text())
    with running("owner", "--folder", "north", "--key", "ana.key", cwd=work, log="owner.txt"):
        said = work / "owner.txt"
        wait(lambda: re.search(r"open (http\S+)", said.read_text()))
        link = re.search(r"open (http\S+)", said.read_text())[1]
        page.goto(link)
        address = link.partition("/open")[0]
        for path, name in zip(("/", "/waiting", "/left"), OWNER_SCREENS, strict=True):
            wait(lambda path=path: is_worked_out(page, f"{address}{path}"))
            shoot(page, f"{address}{path}", folder / name)


def is_worked_out(page, address: str) -> bool:
    """Whether the page has found out what it says it is about to."""
    page.goto(address)
    shown = page.inner_text("main")
    return "being read" not in shown and "worked out" not in shown


def shoot(page, address: str, path: Path) -> None:
    """A picture of a page; charts are drawn by then."""
    answer = page.goto(address)
    assert answer is not None, address
    assert answer.status == 200, (address, answer.status)
    page.wait_for_timeout(500)
    height = page.evaluate("document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": 1280, "height": min(height, _TALLEST)}
    page.screenshot(path=path, full_page=True, clip=clip)


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
