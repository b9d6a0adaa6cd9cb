"""Short names that tell methods apart: what they are, and what differs between them.

A method is a chain of steps, most often of one; each step is a kind and its parameters. Of several
methods the name leaves out the steps before the last that all of them have, and the parameters in
which those of the same chain agree:

    Pipeline(FedScaler(), FedHEONN(lam=0.1))        FedHEONN lam=0.1
    Pipeline(FedScaler(), FedHEONN(lam=1.0))        FedHEONN lam=1.0
    Pipeline(FedScaler(), FedBins(8), FedID3())     FedBins → FedID3
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from solera.core.component import Component

Step = tuple[str, Mapping[str, str]]
"""The kind, and the parameters as text."""
Chain = tuple[Step, ...]


def short_names(chains: Sequence[Chain], labels: Sequence[str] = ()) -> list[str]:
    """A name for every chain; a label, where one is given, takes the place of its kinds."""
    shared = _shared_steps(chains)
    kinds = [" → ".join(kind for kind, _ in _without(chain, shared)) for chain in chains]
    if labels:
        kinds = [label or kind for label, kind in zip(labels, kinds, strict=True)]
    params = [_flat(chain) for chain in chains]
    values: dict[str, dict[str, Counter[str]]] = {}
    for kind, given in zip(kinds, params, strict=True):
        for name, value in given.items():
            values.setdefault(kind, {}).setdefault(name, Counter())[value] += 1
    members = Counter(kinds)
    names = []
    for kind, given in zip(kinds, params, strict=True):
        differing = [n for n, value in given.items() if values[kind][n][value] < members[kind]]
        names.append(" ".join([kind, *(f"{_last(n, differing)}={given[n]}" for n in differing)]))
    return names


def _shared_steps(chains: Sequence[Chain]) -> list[Step]:
    """The steps before the last that all chains have, with the same parameters."""
    first = chains[0][:-1] if chains else ()
    return [step for step in first if all(step in chain[:-1] for chain in chains)]


def _without(chain: Chain, shared: Sequence[Step]) -> Chain:
    return (*(step for step in chain[:-1] if step not in shared), chain[-1])


def _flat(chain: Chain) -> dict[str, str]:
    """Parameters of all steps, by step and name."""
    seen: Counter[str] = Counter()
    flat: dict[str, str] = {}
    for kind, params in chain:
        seen[kind] += 1
        owner = kind if seen[kind] == 1 else f"{kind} {seen[kind]}"
        flat |= {f"{owner}.{name}": value for name, value in params.items()}
    return flat


def _last(name: str, among: Sequence[str]) -> str:
    """The parameter's own name where no other step has one of that name."""
    own = name.rpartition(".")[2]
    return own if sum(other.rpartition(".")[2] == own for other in among) == 1 else name


# --- chains ---


def chain_of(component: Component) -> Chain:
    """The steps of a pipeline, or the component itself."""
    return tuple(_step(step) for step in getattr(component, "learners", (component,)))


def _step(component: Any) -> Step:
    params = component.get_params(deep=False)
    return type(component).__name__, {name: repr(value) for name, value in params.items()}


def chain_of_text(text: str) -> Chain:
    """The chain that a component's repr describes; any other text is a kind of its own."""
    try:
        call: Any = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return ((text, {}),)
    if not isinstance(call, ast.Call):
        return ((text, {}),)
    args = [arg.elts[-1] if isinstance(arg, ast.Tuple) else arg for arg in call.args]
    steps = [arg for arg in args if isinstance(arg, ast.Call)]
    if _kind(call) != "Pipeline" or not steps:
        steps = [call]
    return tuple((_kind(step), _arguments(step)) for step in steps)


def _kind(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _arguments(call: ast.Call) -> dict[str, str]:
    named = {str(word.arg): ast.unparse(word.value) for word in call.keywords}
    return {**{str(i): ast.unparse(arg) for i, arg in enumerate(call.args)}, **named}
