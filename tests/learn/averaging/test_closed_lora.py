"""FedLoRA as a closed job: its adapters start by what the dictionary lists of the base."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import solera as so
from solera.core.payload import decode
from solera.learn.averaging.training.architecture import Architecture
from solera.trust.board.engine import NotClosed

transformers = pytest.importorskip("transformers")
from solera.learn.averaging.lora import Adapted, base_faults  # noqa: E402
from solera.learn.averaging.training.adapters import listed  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "trust" / "board"))
from board_owners import EXACT, Job  # noqa: E402

SMALL = {"rank": 2, "rounds": 2, "batch_size": 8, "lr": 0.01}
WORDS = [f"word {i}" for i in range(6)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bert(folder: Path, seed: int = 0, **changes: int) -> str:
    """The folder of a transformer with random weights."""
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2, **changes}
    torch.manual_seed(seed)
    config = transformers.BertConfig(vocab_size=30, num_hidden_layers=2, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return bert(tmp_path_factory.mktemp("models") / "tiny")


def frame(rows: int = 160) -> pd.DataFrame:
    """Rows of tokens whose class is whether token 7 is in them; −1 ends them."""
    draw = np.random.default_rng(0)
    X = draw.integers(8, 30, (rows, len(WORDS)))
    y = np.arange(rows) % 2
    X[y == 1, draw.integers(0, 4, (y == 1).sum())] = 7
    X[np.arange(len(WORDS)) >= draw.integers(4, len(WORDS) + 1, rows)[:, None]] = -1
    table = pd.DataFrame(X.astype(float), columns=WORDS)
    return table.assign(mood=np.where(y == 1, "good", "bad"))


def owners(*bases, **options):
    dictionary = replace(so.epochs.draft(frame(), target="mood"), bases=bases)
    given = {"clients": 4, "seed": 1, "policy": EXACT, "test": 0.1, **options}
    return so.simulate(frame(), dictionary=dictionary, **given)


def test_a_board_has_the_bytes_of_a_simulation_and_the_model_is_that_of_its_owners(base):
    job = Job(so.FedLoRA(base, **SMALL), owners(listed(base)))
    expected = job.simulated()
    ends = job.run()
    assert [end.why for end in ends] == [""] * 4
    assert {end.closed.result for end in ends if end.closed} == {expected}
    assert len(decode(expected)["history"]) == 2


def test_it_learns_evaluates_and_is_loaded_as_any_other(base, tmp_path):
    fed = owners(listed(base))
    model = so.FedLoRA(base, **{**SMALL, "rounds": 12, "epochs": 3}).fit(fed, progress=False)
    X = frame()[WORDS].to_numpy()
    assert model.score(X, frame()["mood"]) > 0.9
    assert model.evaluate(fed)["accuracy"].between[0] > 0.7
    model.save(tmp_path / "model")
    again = so.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_noise_needs_no_network_in_the_process_without_rows(base):
    privacy = {"policy": "sums", "privacy": {"epsilon": 8.0, "delta": 1e-5}}
    dp = so.DP(epsilon=8.0, delta=1e-5, clip=0.1)
    noised = {**SMALL, "dp": dp, "weight": None, "batch_size": None, "local_steps": 1}
    model = so.FedLoRA(base, **noised).fit(owners(listed(base), policy=privacy), progress=False)
    assert 0 < model.history_[-1]["epsilon"] <= 8


def test_what_is_not_listed_is_refused_with_the_line_to_write(base):
    with pytest.raises(NotClosed, match=r"lists no base model .*so\.nn\.list_base"):
        so.FedLoRA(base, **SMALL).fit(owners(), progress=False)
    with pytest.raises(NotClosed, match="lists no base model 'other'"):
        so.FedLoRA("other", **SMALL).fit(owners(listed(base)), progress=False)
    with pytest.raises(so.errors.UsageError, match="targets="):
        so.FedLoRA(base, targets=["key"], **SMALL).fit(owners(listed(base)), progress=False)


def wrong(good, what):
    first, *rest = good.layers
    swapped = (replace(good, layers=(*rest, first)), "lists layers")
    return {
        "shape": (replace(good, layers=((first[0], 16, 8), *rest)), "lists layers"),
        "name": (replace(good, layers=(("a.query", 16, 16), *rest)), "lists layers"),
        "hidden": (replace(good, hidden=8), "lists hidden = 8, here it is 16"),
        "digest": (replace(good, digest="0" * 32), "another one here: the dictionary lists digest"),
        "order": swapped,
        "few": (replace(good, layers=good.layers[:2]), "lists layers"),
    }[what]


@pytest.mark.parametrize("what", ["shape", "name", "hidden", "digest", "order", "few"])
def test_another_base_than_the_one_listed_is_refused_at_the_first_task(base, what):
    entry, said = wrong(listed(base), what)
    with pytest.raises(so.errors.SoleraError, match=said):
        so.FedLoRA(base, **SMALL).fit(owners(entry), progress=False)


@pytest.mark.parametrize("what", ["shape", "name", "hidden", "digest"])
def test_another_base_than_the_one_listed_is_named_before_it_is_signed(base, what):
    entry, said = wrong(listed(base), what)
    assert base_faults([listed(base)]) == {}
    (fault,) = base_faults([entry]).values()
    assert said in fault
    assert "no base model" in base_faults([replace(entry, name="nowhere")])["nowhere"]


def test_lines_for_other_layers(base):
    keys = so.nn.list_base(base, targets=["key"])
    text = so.epochs.draft(frame(), target="mood").toml() + keys
    dictionary = so.epochs.Dictionary.parse(text)
    assert dictionary.toml() == text
    assert {layer[0].rpartition(".")[2] for layer in dictionary.bases[0].layers} == {"key"}
    fed = owners(*dictionary.bases)
    model = so.FedLoRA(base, targets=["key"], **SMALL).fit(fed, progress=False)
    assert len(model.weights_) == 2 * 2 * (16 + 16) + 16 * 2 + 2
    with pytest.raises(so.errors.UsageError, match="the layers of attention"):
        so.FedLoRA(base, **SMALL).fit(fed, progress=False)


def adapted(base: str, rank: int = 8) -> Adapted:
    entry = listed(base)
    layers = [[*layer] for layer in entry.layers]
    return Adapted(base, entry.digest, 3, rank=rank, hidden=entry.hidden, layers=layers)


def test_first_adapters_are_distributed_as_those_of_the_network(base):
    """The same names, shapes and order; A and the head within the same bounds, B zero."""
    described = adapted(base)
    network = described.module()
    assert [(n, p.shape) for n, p in described.shapes()] == [
        (name, tuple(value.shape)) for name, value in network.state_dict().items()
    ]
    architecture = Architecture(described)
    for name, value in architecture.layout.arrays(architecture.start(3, "float64")).items():
        if name.endswith("up"):
            assert not value.any()
        else:
            assert 0.6 * 0.25 < np.abs(value).max() <= 0.25  # 1/√16
            assert np.unique(value).size == value.size


def test_the_first_model_needs_no_torch(base):
    code = """
import sys
from solera.serve.agent.closed.learner_process import WithoutTorch
sys.meta_path.insert(0, WithoutTorch())
from solera.learn.averaging.lora import Adapted
from solera.learn.averaging.training.architecture import Architecture
model = Adapted("nowhere", "0" * 32, 2, rank=2, hidden=4, layers=[["a.query", 6, 4]])
architecture = Architecture(model)
print(len(architecture.start(0, "float32")), repr(architecture.mixes_rows))
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(2 * (4 + 6) + 2 * 4 + 2), "''"], done.stderr
