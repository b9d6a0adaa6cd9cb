"""Model cards: what a model is, what it was trained on, and where it should not be used.

The headings follow Mitchell et al. 2019, *Model cards for model reporting*. What a card says of the
training is kept in the saved model; nothing is made up for what is not known.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Any, Final

from solera.core.federation import Federation
from solera.core.rounds import logged
from solera.core.schema import Schema
from solera.core.version import versions_of
from solera.evaluation.figure import in_words, read_figure

_UNKNOWN = "not known"
_SHOWN = 20
CARD: Final = ".card.md"
"""What the file of a card is called: the model's file and this."""
_PACKAGES = ("solera", "numpy", "scikit-learn", "torch")


def training_facts(federation: Federation, learner: Any, *, started: bool) -> dict[str, Any]:
    """What a model keeps of its training: clients, rows where they are known, seed, versions.

    ``started`` says whether it began with a model, whose clients and rows are not counted here; of
    a learner that adds noise it is kept whether that was ``simulated``.
    """
    sizes = federation.engine.sizes("train")
    earlier: dict[str, Any] = {"started": True} if started else {}
    if any("accounts_" in vars(part) for part in _parts(learner)):
        earlier["simulated"] = bool(getattr(federation.engine, "simulated", False))
    job = getattr(federation.engine, "job", None) if learner.is_personal else None
    if job is not None:  # where clients keep the rest of the model
        earlier["job"] = job
    secure = {} if federation.secure is None else {"secure": repr(federation.secure)}
    return {
        **earlier,
        **secure,
        "clients": len(federation),
        "rows": None if sizes is None else int(sizes[federation.clients].sum()),
        "seed": federation.seed,
        "versions": {"python": platform.python_version(), **versions_of(*_PACKAGES)},
    }


def model_card(learner: Any, evaluation: Any, energy: Any) -> str:
    """The card of a fitted learner in Markdown."""
    learner.check_fitted()
    training = learner._trained_with or {}
    sections = {
        "Model": _model(learner),
        "Data": _data(learner.schema_),
        "Training": _rounds(learner, training),
        "Metrics": _metrics(evaluation, training.get("measured", {})),
        "Privacy": [*_privacy(learner, training), *_secure(training)],
        "Energy": ["not measured" if energy is None else f"{energy}"],
        "Versions": [f"{name} {number}" for name, number in training.get("versions", {}).items()],
        "Limits": _limits(learner),
    }
    lines = [f"# Model card: {type(learner).__name__}", ""]
    lines += [f"**Warning**: {warning}\n" for warning in training.get("warnings", ())]
    for title, facts in sections.items():
        lines += [f"## {title}", "", *(f"- {fact}" for fact in list(facts) or [_UNKNOWN]), ""]
    return "\n".join(lines)


def _model(learner: Any) -> Iterator[str]:
    yield f"learner: `{learner!r}`"
    if learner.is_personal:
        yield "every client has a model of its own, of which all share a part"
    owners = [vars(part)["owner_"] for part in _parts(learner) if "owner_" in vars(part)]
    yield from (f"of client: {owner}" for owner in owners if owner)
    for need in learner.needs_to_load():
        yield f"to load it: {need}"


def _data(schema: Schema) -> Iterator[str]:
    kinds = [feature.kind for feature in schema.features]
    counts = ", ".join(f"{kinds.count(kind):,} {kind}" for kind in sorted(set(kinds)))
    yield f"columns: {counts}"
    yield f"names: {_listed(feature.name for feature in schema.features)}"
    yield f"target: {' '.join([schema.target, *schema.target_names])}"
    if schema.target == "classes":
        yield f"classes: {_listed(schema.classes.tolist())}"
    if schema.positive:
        yield f"positive class: {schema.positive}"


def _rounds(learner: Any, training: Mapping[str, Any]) -> Iterator[str]:
    for name in ("clients", "rows", "seed"):
        value = training.get(name)
        yield f"{name}: {_UNKNOWN if value is None else f'{value:,}'}"
    if "started" in training:
        yield "it began with a model that was trained before, on rows that are not counted here"
    history = learner.history_
    if not history:
        yield "rounds: 1 or none that were logged"
        return
    yield f"rounds: {len(history):,}"
    traffic = sum(entry.get("bytes_down", 0) + entry.get("bytes_up", 0) for entry in history)
    yield f"messages of these rounds: {traffic:,} bytes"
    for name, value in logged(history[-1]).items():
        yield f"{name} of the last round: {in_words(value)}"


def _metrics(evaluation: Any, measured: Mapping[str, Any]) -> list[str]:
    """What is given, or what a study measured when it trained the model."""
    if evaluation is None and any(measured.values()):
        return [
            f"{name}: {in_words(read_figure(name, figure))} ({part})"
            for part, figures in measured.items()
            for name, figure in figures
        ]
    if evaluation is None:
        return [f"{_UNKNOWN}: give `card` what `evaluate` returned"]
    found = [f"{name}: {in_words(figure)}" for name, figure in evaluation.metrics.items()]
    found += evaluation.notes
    if evaluation.clients:
        found.append(f"clients that judged it by rows of their own: {len(evaluation.clients):,}")
    return found


def _privacy(learner: Any, training: Mapping[str, Any]) -> Iterator[str]:
    params = learner.get_params()
    noised = [part for part in _parts(learner) if "accounts_" in vars(part)]
    if not noised:
        yield "differential privacy: none, ε is not bounded"
    for part in noised:
        yield (
            f"differential privacy: {part.privacy_}, by {type(part).__name__}; not for the names "
            "of columns, categories and classes"
        )
        if training.get("simulated"):
            yield "its noise was simulated from the seed and protects nobody"
    encrypted = [v for k, v in params.items() if k.endswith("encrypt") and v is not None]
    yield f"encryption of what clients send: {encrypted[0]!r}" if encrypted else "encryption: none"


def _secure(training: Mapping[str, Any]) -> Iterator[str]:
    if "secure" in training:
        yield f"what clients sent was masked, only sums could be read: `{training['secure']}`"


def _parts(learner: Any) -> list[Any]:
    """The learner, and those of which it is made."""
    made_of = [*vars(learner).get("steps_", ()), *filter(None, [vars(learner).get("learner_")])]
    return [learner, *(part for step in made_of for part in _parts(step))]


def _limits(learner: Any) -> Iterator[str]:
    schema = learner.schema_
    yield "it was trained on the rows of these clients; elsewhere it has not been judged"
    if schema.target == "classes":
        yield "it knows no other classes than those above"
    if any(feature.kind == "categorical" for feature in schema.features):
        rule = {"error": "is refused", "other": "counts as missing"}[schema.unknown]
        yield f"a category that was not there in training {rule}"
    if not learner.allows_missing:
        yield "rows with missing values are refused"


def _listed(words: Any) -> str:
    words = [str(word) for word in words]
    more = f" and {len(words) - _SHOWN:,} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
