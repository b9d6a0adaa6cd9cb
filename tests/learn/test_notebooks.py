"""Progress bars, histories and what notebooks show."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import solera as so
from solera.core.errors import NotFitted, UsageError
from solera.learn import progress

FIT = """
import numpy as np, sys
import solera as so
from solera.learn import progress
progress._PATIENCE = progress._PAUSE = 0.0
fed = so.simulate(np.eye(8), [0, 1] * 4, clients=2)
model = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=3))
model.fit(fed{options})
"""


def said_in_a_terminal(options: str = "") -> str:
    """What fit writes to a real terminal."""
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", FIT.replace("{options}", options)]
    process = subprocess.Popen(command, stderr=theirs, stdout=theirs)
    os.close(theirs)
    said = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not chunk:
            break
        said += chunk
    os.close(ours)
    assert process.wait(300) == 0, said
    return said.decode()


def test_a_terminal_shows_a_bar_of_the_rounds():
    said = said_in_a_terminal()
    assert said.count("\r\x1b[2K") >= 3
    last = said.split("\r\x1b[2K")[-1]
    assert "FedLinear ━━━━━━━━━━━━━━━━━━━━━━━━ 3/3 · " in last
    assert "loss " in last
    assert last.endswith("\n")
    assert said_in_a_terminal(", progress=False") == ""


@pytest.mark.parametrize("wanted", [True, None])
def test_a_file_shows_no_bar_unless_it_is_asked_for(capfd, monkeypatch, wanted):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    fed = so.simulate(np.eye(8), [0, 1] * 4, clients=2)
    so.FedLinear(rounds=3).fit(fed, progress=wanted)
    assert ("3/3" in capfd.readouterr().err) == bool(wanted)


def test_quick_fits_and_quick_rounds_draw_nothing_or_little(capfd, monkeypatch):
    fed = so.simulate(np.eye(8), [0, 1] * 4, clients=2)
    so.FedLinear(rounds=3).fit(fed, progress=True)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_PAUSE", 3600.0)
    so.FedLinear(rounds=50).fit(fed, progress=True)
    assert capfd.readouterr().err.count("\r") == 2  # the first round and the last


def test_the_bar_changes_neither_model_nor_checkpoint(tmp_path):
    fed = so.simulate(np.eye(8), [0, 1] * 4, clients=2)
    plain = so.FedLinear(rounds=3).fit(fed, checkpoint=tmp_path / "plain.ckpt")
    barred = so.FedLinear(rounds=3).fit(fed, checkpoint=tmp_path / "bar.ckpt", progress=True)
    assert np.array_equal(plain.coef_, barred.coef_)
    resumed = so.FedLinear(rounds=3).fit(fed, checkpoint=tmp_path / "bar.ckpt")
    assert np.array_equal(resumed.coef_, plain.coef_)


def test_the_history_is_a_picture():
    X = np.eye(8)
    fed = so.simulate(X, [0, 1] * 4, clients=2)
    evaluated = so.callbacks.Evaluate(X, np.array([0, 1] * 4), every=2)
    model = so.FedLinear(rounds=6).fit(fed, callbacks=[evaluated])
    figure = model.plot_history()
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "loss",
        "score",
        "loss of held-out rows",
    ]
    (curve,) = model.plot_history("score").axes[0].lines
    assert curve.get_xdata().tolist() == [2, 4, 6]
    assert curve.get_ydata().tolist() == [e["score"] for e in model.history_ if "score" in e]
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"'los' was not logged.*'loss'"):
        model.plot_history("los")
    with pytest.raises(UsageError, match="no history to show"):
        so.FedHEONN().fit(fed).plot_history()
    with pytest.raises(NotFitted):
        so.FedLinear().plot_history()


def test_what_notebooks_show_is_escaped_and_says_what_matters(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"town": ["<b>Vigo", "Lugo"] * 10, "x": range(20), "y": ["<i>yes", "no"] * 10}
    )
    fed = so.simulate(frame, target="y", group="town", test=0.2)
    shown = fed._repr_html_()
    assert "&lt;b&gt;Vigo" in shown
    assert "<td>LocalEngine</td>" in shown
    assert "20 (0 left over)" in shown
    model = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=2)).fit(fed)
    learned = model._repr_html_()
    assert "&lt;i&gt;yes, no" in learned
    assert "<th>rounds</th><td>2</td>" in learned
    assert "fitted on" not in so.FedLinear()._repr_html_()
    found = model.evaluate(fed)._repr_html_()
    assert "<th>&lt;b&gt;Vigo</th>" in found
    assert "<th>accuracy</th>" in found
    for html in (shown, learned, found):
        assert "<b>" not in html
        assert "<i>" not in html


CELLS = [
    "import numpy as np, solera as so\n"
    "from solera.learn import progress\n"
    "progress._PATIENCE = progress._PAUSE = 0.0\n"
    "fed = so.simulate(np.eye(8), [0, 1] * 4, clients=2)\nfed",
    "model = so.FedLinear(rounds=3).fit(fed)",
    "model",
    "model.plot_history()",
    "so.FedLinear(rounds=3).fit(fed, progress=False);",
]


def test_a_notebook_shows_bars_tables_and_pictures(tmp_path, monkeypatch):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    NotebookClient(book, timeout=600, kernel_name="python3").execute()
    federation, bar, model, picture, silent = (cell.outputs for cell in book.cells)
    assert "LocalEngine" in federation[0]["data"]["text/html"]
    assert "3/3" in bar[0]["data"]["text/html"]
    assert '<progress value="1.0000"' in bar[0]["data"]["text/html"]
    assert len(bar) == 1
    assert "last loss" in model[0]["data"]["text/html"]
    assert "image/png" in picture[0]["data"]
    assert silent == []
