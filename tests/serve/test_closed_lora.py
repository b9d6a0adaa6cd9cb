"""FedLoRA over four agents and TLS, whose learners have no torch: the simulation's bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography", "torch"):
    pytest.importorskip(library, reason="the extras 'serve' and 'torch' are not installed")
transformers = pytest.importorskip("transformers")

from closed_network import NAMES, ClosedNetwork, learned  # noqa: E402

from solera.core.payload import encode  # noqa: E402
from solera.learn.averaging.training.adapters import listed  # noqa: E402
from solera.learn.closed_evaluation import to_payload  # noqa: E402
from solera.serve.agent.closed.rehearsal import what_it_tells  # noqa: E402
from solera.serve.agent.closed.rules import refusal  # noqa: E402
from solera.serve.agent.policy import OwnerPolicy  # noqa: E402
from solera.trust.board.engine import NotClosed  # noqa: E402
from solera.trust.board.text import JobText  # noqa: E402

EXACT = 'policy = "sums"\nexact_training = true\n'


@pytest.fixture
def base(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=30, num_hidden_layers=1, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path / "tiny")
    return str(tmp_path / "tiny")


def rows():
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.integers(8, 30, (300, 5)), columns=[f"word {i}" for i in range(5)])
    return frame.assign(mood=np.where(frame.iloc[:, 0] > 18, "good", "bad"))


def test_an_agent_refuses_a_text_whose_base_is_not_listed(base):
    drafted = so.epochs.draft(rows(), target="mood")
    dictionary = replace(drafted, bases=(listed(base),))
    fed = so.simulate(rows(), clients=4, dictionary=dictionary, policy="sums")
    epoch = replace(fed.configuration.epoch, atoms=fed.atoms)
    for name, said in ((base, None), ("/etc/other", "lists no base model '/etc/other'")):
        learner = so.FedLoRA(name, batch_size=20)
        text = JobText("training", learner, researcher_key=bytes(31) + b"\1")
        reason = refusal(OwnerPolicy.parse(EXACT), text, epoch)
        assert reason is None if said is None else said in reason


def test_an_owner_reads_why_a_text_was_not_rehearsed(base):
    """Rows that are made up of a dictionary end anywhere, those of texts after the last token."""
    frame = rows()
    frame.loc[frame.index % 3 == 0, "word 4"] = -1
    dictionary = replace(so.epochs.draft(frame, target="mood"), bases=(listed(base),))
    columns = (replace(dictionary.columns[0], bounds=(-1.0, 29.0)), *dictionary.columns[1:])
    dictionary = replace(dictionary, columns=columns)
    fed = so.simulate(frame, clients=4, dictionary=dictionary, policy="sums")
    epoch = replace(fed.configuration.epoch, atoms=fed.atoms)
    text = JobText("training", so.FedLoRA(base, batch_size=20), researcher_key=bytes(31) + b"\1")
    told = dict(what_it_tells(OwnerPolicy.parse(EXACT), text, epoch))
    assert "not counted" in told["tells"]
    assert "token numbers" in told["tells"]
    assert f"up to {len(frame)} of {len(frame)} persons" in told["at worst"]


@pytest.mark.slow
def test_adapters_have_the_bytes_of_their_simulation(base, tmp_path):
    network = ClosedNetwork(
        tmp_path / "network", rows(), bases=(listed(base),), simd=dict.fromkeys(NAMES, "")
    )
    try:
        lora = so.FedLoRA(base, rank=2, rounds=2, batch_size=20)
        model = lora.clone().fit(network.closed(test=0.2))
        owners = network.simulation(test=0.2)
        simulated = lora.clone().fit(owners, progress=False)
        assert learned(model) == learned(simulated)
        judged = model.evaluate(network.closed(test=0.2), scores=True)
        expected = simulated.evaluate(owners, scores=True)
        assert encode(to_payload(judged)) == encode(to_payload(expected))
        with pytest.raises(NotClosed, match="lists no base model 'other'"):
            so.FedLoRA("other").fit(network.closed(test=0.2))
    finally:
        network.close()
