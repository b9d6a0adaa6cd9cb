"""Low-rank adapters of a frozen transformer, and a head for rows of tokens.

Hu et al. (2022), "LoRA", equation 3: a layer W of the base becomes W x + (α/r) B A x, A (r × in)
is drawn and B (out × r) zero at first. W never changes and is held once per process.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import nn

from solera.core.errors import DataError, MissingExtra, UsageError
from solera.learn.averaging.lora import adapted_places
from solera.learn.averaging.models import given_bases
from solera.trust.epoch.bases import Base

try:
    import transformers
    from huggingface_hub import snapshot_download
except ImportError as error:
    raise MissingExtra.of("low-rank adapters of a language model", "transformers") from error

_AT_ONCE = 64
"""Rows that are predicted at once."""
_adapting = threading.Lock()


class Adapter(nn.Module):  # type: ignore[misc]
    """(α/r) B A x."""

    def __init__(self, inputs: int, outputs: int, rank: int, alpha: float) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, inputs))
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Any) -> Any:
        hidden = nn.functional.linear(x, self.down)
        return nn.functional.linear(hidden, self.up) * self.scale


class AdaptedNetwork(nn.Module):  # type: ignore[misc]
    """Adapters and a head; the base is no part of it and stays frozen, without dropout.

    Rows are token numbers, with −1 after the last one. The head takes the mean of the last hidden
    states of a row's tokens.
    """

    def __init__(
        self,
        base: str,
        digest: str,
        outputs: int,
        rank: int,
        alpha: float,
        targets: Sequence[str] | None,
    ) -> None:
        super().__init__()
        self.source = (base, digest)
        network = frozen_network(base, digest, torch.float32, torch.device("cpu"))
        layers = dict(network.named_modules())
        self.places = adapted_layers(network, targets)
        sizes = filter(None, (_sizes(layers[place]) for place in self.places))
        self.adapters = nn.ModuleList(Adapter(narrow, wide, rank, alpha) for narrow, wide in sizes)
        self.head = nn.Linear(network.config.hidden_size, outputs)

    def forward(self, x: Any) -> Any:
        if torch.is_grad_enabled() or len(x) <= _AT_ONCE:
            return self._outputs(x)
        return torch.cat([self._outputs(rows) for rows in x.split(_AT_ONCE)])

    def _outputs(self, x: Any) -> Any:
        weight = self.head.weight
        network = frozen_network(*self.source, weight.dtype, weight.device)
        tokens = x.long()
        real = tokens >= 0
        if (x != tokens.clamp(min=-1)).any() or (real[:, 1:] > real[:, :-1]).any():
            raise DataError(
                "rows hold other than token numbers, with −1 after the last one",
                hint="rows are made by so.nn.tokens(model, texts)",
            )
        longest = int(real.sum(dim=1).max())
        tokens, real = tokens[:, : max(1, longest)].clamp(min=0), real[:, : max(1, longest)]
        if int(tokens.max()) >= network.config.vocab_size:
            raise DataError(
                f"token {int(tokens.max())} of a vocabulary of {network.config.vocab_size}",
                hint="rows are made by so.nn.tokens(model, texts)",
            )
        seen = real.clone()
        seen[:, 0] = True  # a row without a token would attend to nothing
        with self._attached(network):
            states = network(input_ids=tokens, attention_mask=seen.long()).last_hidden_state
        shares = real.to(states.dtype).unsqueeze(-1)
        mean = (states * shares).sum(dim=1) / shares.sum(dim=1).clamp(min=1)
        return self.head(mean)

    @contextmanager
    def _attached(self, network: Any) -> Iterator[None]:
        """The base with these adapters, for one pass: others use the same base."""
        layers = dict(network.named_modules())
        with _adapting:
            hooks = [
                layers[place].register_forward_hook(
                    lambda _layer, inputs, output, adapter=adapter: output + adapter(inputs[0])
                )
                for place, adapter in zip(self.places, self.adapters, strict=True)
            ]
            try:
                yield
            finally:
                for hook in hooks:
                    hook.remove()


def adapted_layers(network: Any, targets: Sequence[str] | None) -> list[str]:
    """The names of the layers that get an adapter: all whose last name is among the targets."""
    layers = [name for name, layer in network.named_modules() if _sizes(layer) is not None]
    return adapted_places(layers, targets, type(network).__name__)


def listed(base: str, targets: Sequence[str] | None = None) -> Base:
    """What a dictionary lists of a base model."""
    network, digest = read_base(base)
    layers = dict(network.named_modules())
    sizes = [(place, _sizes(layers[place]) or (0, 0)) for place in adapted_layers(network, targets)]
    shapes = tuple((place, wide, narrow) for place, (narrow, wide) in sizes)
    return Base(base, digest, int(network.config.hidden_size), shapes)


def check_listed(base: Base, targets: Sequence[str] | None) -> None:
    """Refuse a base model that is another one here than a dictionary lists."""
    found = listed(base.name, targets)
    for name in ("digest", "hidden", "layers"):
        if getattr(found, name) != getattr(base, name):
            raise DataError(
                f"the base model {base.name!r} is another one here: the dictionary lists {name} = "
                f"{getattr(base, name)!r}, here it is {getattr(found, name)!r}",
                hint="the same files at all owners; so.nn.list_base(model) gives their lines",
            )


def _sizes(layer: Any) -> tuple[int, int] | None:
    """Inputs and outputs of a linear layer; GPT-2 has a kind of its own."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, transformers.pytorch_utils.Conv1D):
        inputs, outputs = layer.weight.shape
        return int(inputs), int(outputs)
    return None


@lru_cache(maxsize=4)
def frozen_network(base: str, digest: str, dtype: Any, device: Any) -> Any:
    """The base without what is on top of it; refused where it is not the one that is meant."""
    network, found = read_base(base)
    if found != digest:
        raise DataError(
            f"the base model {base!r} is another one here: {found}, not {digest}",
            hint="everybody needs the same files of the base model",
        )
    if (dtype, device) == (torch.float32, torch.device("cpu")):
        return network
    from copy import deepcopy

    return deepcopy(network).to(device, dtype)


@lru_cache(maxsize=4)
def read_base(base: str) -> tuple[Any, str]:
    """A network from a folder or from what was downloaded before, and its digest.

    Nothing is downloaded, no code of a model's author runs, and no pickle is read.
    """
    network = given_bases.get(base)
    if network is None:
        try:
            # a name alone would be looked up at a server, local_files_only or not
            folder = base if Path(base).is_dir() else snapshot_download(base, local_files_only=True)
            network = transformers.AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
            )
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no base model {base!r} is at hand here",
                hint="a folder with config.json and model.safetensors",
            ) from error
    if getattr(network.config, "is_encoder_decoder", False):
        network = network.get_encoder()
    network = network.float().eval().requires_grad_(False)
    if hasattr(network.config, "use_cache"):
        network.config.use_cache = False
    return network, base_digest(network)


def base_digest(network: Any) -> str:
    """What tells one base model from another: its class and every number in it."""
    state = blake2b(type(network).__name__.encode(), digest_size=16)
    for name, value in sorted(network.state_dict().items()):
        state.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        state.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return state.hexdigest()


def keep_given(model: Any) -> str:
    """The name under which this process knows a network that was given as it is."""
    from copy import deepcopy

    name = f"given/{base_digest(model.base_model)}"
    if name not in given_bases:
        given_bases[name] = deepcopy(model.base_model).cpu()
    return name
