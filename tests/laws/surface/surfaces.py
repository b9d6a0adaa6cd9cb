"""What is read of a fitted learner, and what makes it right; each is a function of a case.

A surface returns when all is right, raises :class:`Wrong` when something is not, and lets errors
pass: a refusal of Solera's own is an answer, too. One that the learner does not have is
:class:`Absent`.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import cross_val_score

import solera as so
from surface import oracle
from surface.case import ESTIMATES, Case
from surface.dealt import PARTS, take
from surface.oracle import NAMES

SURFACES: dict[str, Callable[[Case], None]] = {}


class Wrong(AssertionError):
    """A number, a class or a row that is not what it should be."""


class Absent(Exception):
    """The learner has no such method."""


def surface(check: Callable[[Case], None]) -> Callable[[Case], None]:
    SURFACES[check.__name__] = check
    return check


def require(right: Any, message: str) -> None:
    if not right:
        raise Wrong(message)


def offered(case: Case, name: str) -> None:
    """Absent where the learner makes rows of rows, or has no such method."""
    if transforms(case.model) or not hasattr(case.model, name):
        raise Absent


def close(a: Any, b: Any, what: str, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    """Numbers that are the same but for rounding, or classes that are the same."""
    a, b = dense(a), dense(b)
    require(a.shape == b.shape, f"{what}: shapes {a.shape} and {b.shape}")
    if a.dtype.kind in "USO" or b.dtype.kind in "USO":
        require(np.array_equal(a, b), f"{what}: {(a != b).mean():.0%} of {len(a)} classes differ")
        return
    same = np.isclose(a.astype(float), b.astype(float), rtol=rtol, atol=atol, equal_nan=True)
    if not same.all():
        first = tuple(np.argwhere(~same)[0])
        raise Wrong(f"{what}: {(~same).mean():.0%} differ, the first {a[first]!r}, {b[first]!r}")


def dense(X: Any) -> Any:
    return X.toarray() if hasattr(X, "toarray") else np.asarray(X)


def answers(model: Any, X: Any) -> Any:
    """What a learner says of rows: numbers or classes, and transformed rows."""
    return dense(model.transform(X)) if transforms(model) else model.predict(X)


def rows_model(model: Any) -> Any:
    """What answers rows that name no client: where every client has its own model, one of these."""
    return model.at(1) if model.is_personal else model


def by_owners(model: Any, dealt: Any, asked: Any = answers) -> Any:
    """The answers for all dealt rows, each by the model of its owner."""
    if not model.is_personal:
        return asked(model, dealt.X)
    held = [np.flatnonzero(dealt.owners == client) for client in np.unique(dealt.owners)]
    said = [asked(model.at(k), take(dealt.X, rows)) for k, rows in enumerate(held)]
    return np.concatenate(said)[np.argsort(np.concatenate(held))]


def transforms(model: Any) -> bool:
    """Whether it makes rows of rows; a pipeline does what its last step does."""
    return isinstance(_last(model), so.learn.Transformer)


def _last(model: Any) -> Any:
    return model.learners[-1] if isinstance(model, so.Pipeline) else model


def figures(found: Any) -> dict[str, float]:
    return {name: float(value) for name, value in dict(found).items()}


# --- predictions ---


@surface
def fit(case: Case) -> None:
    """It returns itself, knows the classes by their names, and holds no NaN."""
    model, dealt = case.model, case.dealt
    require(model.n_features_in_ == 5, f"fitted on {model.n_features_in_} columns of 5")
    if dealt.is_frame:
        names = model.feature_names_in_.tolist()
        require(names == list(dealt.X.columns), f"columns {names}")
    if model.predicts and dealt.target in NAMES:
        found = model.classes_.tolist()
        require(found == NAMES[dealt.target], f"classes {found}")
    for name, value in _numbers(model.get_state()):
        require(np.isfinite(value).all(), f"{name} holds a value that is no number")


def _numbers(state: Any, name: str = "") -> Any:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _numbers(value, f"{name}.{key}")
    elif isinstance(state, list | tuple):
        for i, value in enumerate(state):
            yield from _numbers(value, f"{name}[{i}]")
    elif isinstance(state, float | np.ndarray) and np.asarray(state).dtype.kind == "f":
        yield name, np.atleast_1d(state)


@surface
def predict(case: Case) -> None:
    """One answer a row, a class by its name; alone as together, whatever the order of columns."""
    model, X, target = rows_model(case.model), case.dealt.X, case.dealt.target
    found = dense(answers(model, X))
    require(len(found) == X.shape[0], f"{len(found)} answers for {X.shape[0]} rows")
    if model.predicts:
        shape = (X.shape[0], 3) if case.dealt.has_labels else (X.shape[0],)
        require(found.shape == shape, f"predictions of shape {found.shape}")
        if target in NAMES:
            require({*found.tolist()} <= {*NAMES[target]}, f"classes {sorted({*found.tolist()})}")
        if case.dealt.has_labels:
            unseen = unlearned(case)
            require((found[:, unseen] == -1).all(), "a label is predicted that was never learned")
            seen = np.unique(found[:, ~unseen])
            require({*seen} <= {0, 1}, f"labels {seen}")
    if found.dtype.kind == "f" and case.dealt.kind != "frame":
        require(np.isfinite(found).all(), "predictions that are no numbers")
    rows = [0, 50, 96]
    alone = [dense(answers(model, take(X, [row])))[0] for row in rows]
    close(alone, found[rows], "rows alone", rtol=1e-4, atol=1e-5)
    if case.dealt.is_frame:
        close(answers(model, X[X.columns[::-1]]), found, "columns in another order")
    _known_answers(case, found)


def unlearned(case: Case, client: int = 1) -> Any:
    """Labels that a client's own head never saw, where the heads of others are not its own."""
    learner = core_learner(case.model)
    train = case.dealt.y[case.dealt.parts["train"][client]]
    has_own_head = case.model.is_personal and not isinstance(learner, so.FedBN | so.Ditto)
    return (train < 0).all(axis=0) & has_own_head


def core_learner(model: Any) -> Any:
    """The learner within a pipeline or among peers."""
    if isinstance(model, so.Pipeline):
        return core_learner(model.steps_[-1])
    return model.learner_ if isinstance(model, so.PeerToPeer) else model


def _known_answers(case: Case, found: Any) -> None:
    """Where the answer has a formula."""
    model, X = case.model, case.dealt.X
    train = case.dealt.rows("train")
    if isinstance(model, so.FedKMeans) and not case.dealt.is_frame:
        gaps = dense(X)[:, None] - model.centroids_
        close(found, (gaps**2).sum(axis=2).argmin(axis=1), "the nearest centroid")
    if isinstance(model, so.FedScaler) and not case.dealt.is_frame:
        close(found, dense(oracle.standardised(X, train)), "standardised", 1e-4, 1e-5)
    if isinstance(model, so.FedImputer) and case.dealt.is_frame:
        filled = X.age.fillna(X.age.iloc[train].mean())
        close(found[:, 0], filled, "ages filled")
        common = np.argmax([(X.ward.iloc[train] == w).sum() for w in ("east", "north", "west")])
        codes = X.ward.cat.codes.to_numpy()
        close(found[:, 4], np.where(codes < 0, common, codes), "wards filled")
    if isinstance(model, so.FedEncoder) and case.dealt.is_frame:
        close(found[:, 3:5], pd.get_dummies(X.sex).to_numpy(float), "sex in columns")
        close(found[:, 5:], pd.get_dummies(X.ward).to_numpy(float), "ward in columns")
    if isinstance(model, so.learn.FedSelect) and not case.dealt.is_frame:
        close(found, dense(X)[:, [3, 1]], "columns chosen")


@surface
def predict_proba(case: Case) -> None:
    """Probabilities by class, in the order of the classes; the largest is the prediction."""
    offered(case, "predict_proba")
    model, X, target = rows_model(case.model), case.dealt.X, case.dealt.target
    p = np.asarray(model.predict_proba(X))
    require(p.shape == (X.shape[0], case.dealt.outputs), f"probabilities of shape {p.shape}")
    predicted = np.asarray(model.predict(X))
    p_known = p[predicted >= 0] if case.dealt.has_labels else p
    require((p_known >= 0).all() and (p_known <= 1 + 1e-6).all(), "not within 0 and 1")
    if case.dealt.has_labels:
        require((np.isnan(p) == (predicted < 0)).all(), "NaN is not where a label is unknown")
        sure = np.abs(p - 0.5) > 1e-6
        require(((p > 0.5) == predicted)[sure].all(), "labels that are not those above one half")
        return
    close(p.sum(axis=1), np.ones(len(p)), "the sum of probabilities", rtol=1e-5)
    _columns_are_scikit_learns(case, p)
    largest = np.array(NAMES[target])[p.argmax(axis=1)]
    ties = (p >= p.max(axis=1, keepdims=True) - 1e-9).sum(axis=1) > 1
    differ = (largest != predicted) & ~ties
    require(not differ.any(), f"{differ.mean():.0%} of predictions are not the most probable class")


def _columns_are_scikit_learns(case: Case, p: Any) -> None:
    """Where an estimator of scikit-learn can be made of it, the columns are of the same classes."""
    estimator: Any = None
    with contextlib.suppress(so.errors.SoleraError):
        estimator = rows_model(case.model).to_sklearn()
    if case.dealt.is_frame or not hasattr(estimator, "predict_proba"):
        return
    order = [list(estimator.classes_).index(name) for name in NAMES[case.dealt.target]]
    close(estimator.predict_proba(dense(case.dealt.X))[:, order], p, "scikit-learn's", 1e-4, 1e-6)


@surface
def explain(case: Case) -> None:
    """The conditions hold for the raw row, and they end in the class that is predicted."""
    offered(case, "explain")
    model, X = rows_model(case.model), case.dealt.X
    predicted = np.asarray(model.predict(X))
    for row in range(0, X.shape[0], 7):
        one = X.iloc[row] if hasattr(X, "iloc") else take(X, [row])
        because = model.explain(one)
        require(because.prediction == predicted[row], f"row {row}: {because} contradicts predict")
        for condition in because.conditions:
            require(_holds(condition, one), f"row {row}: {condition} does not hold")


def _holds(condition: Any, row: Any) -> bool:
    """Whether a condition holds, by the words that it is written in."""
    if not hasattr(row, "index"):
        value: Any = float(dense(row).reshape(-1)[condition.column])
    else:
        value = row[condition.feature]
    text = str(condition).removeprefix(f"{condition.feature} ")
    if pd.isna(value):
        return text == "is missing"
    if text.startswith("= "):
        return str(value) in text[2:].split(" or ")
    if text.startswith("is not "):
        return str(value) != text[7:]
    if text.startswith("in ("):
        low, high = text[4:-1].split(", ")
        return _above(value, low) and _below(value, high)
    sign, _, bound = text.partition(" ")
    if sign in ("≤", ">"):
        return _below(value, bound) if sign == "≤" else _above(value, bound)
    return text == "is known"


def _below(value: Any, bound: str) -> bool:
    return value <= type(value)(bound) or _nearly(value, bound)


def _above(value: Any, bound: str) -> bool:
    return value > type(value)(bound) or _nearly(value, bound)


def _nearly(value: Any, bound: str) -> bool:
    """Conditions show six digits, and dates without hours."""
    if isinstance(value, str):
        return value == bound
    return bool(np.isclose(value, float(bound), rtol=1e-5))


# --- figures ---


@surface
def score_rows(case: Case) -> None:
    """Accuracy, subset accuracy or R² of rows, and of a frame that brings its target along."""
    offered(case, "score")
    model, dealt = rows_model(case.model), case.dealt
    found = model.score(dealt.X, dealt.y)
    wanted = oracle.score(dealt.target, dealt.y, model.predict(dealt.X))
    close(float(found), wanted, "score of rows")
    if dealt.is_frame:
        close(float(model.score(dealt.table())), wanted, "score of a frame")


@surface
def score_federation(case: Case) -> None:
    """The score of a federation is that of all rows of all clients."""
    offered(case, "score")
    model, dealt = case.model, case.dealt
    found = model.score(case.federation)
    wanted = oracle.score(dealt.target, dealt.y, by_owners(model, dealt))
    close(float(found), wanted, "score of the federation", rtol=_digits(wanted))


@surface
def evaluate(case: Case) -> None:
    """Every metric of every part, of all and of each client, by scikit-learn from raw rows."""
    offered(case, "evaluate")
    model, dealt = case.model, case.dealt
    if isinstance(_last(model), so.FedTorch):
        raise Absent  # its metrics are those of the user's function alone
    predicted = np.asarray(by_owners(model, dealt))
    for part in PARTS:
        found = model.evaluate(case.federation, part)
        held = judged_clients(dealt, part, predicted)
        every = dealt.rows(part)
        metrics_are(found.metrics, dealt.target, dealt.y[every], predicted[every], part)
        rests_on(found.metrics, part, judged(dealt, every, predicted), len(held), 4)
        require({*found.clients} == {*held}, f"{part}: clients {sorted(found.clients)}")
        for client, rows in held.items():
            where = f"{part} of client {client}"
            each = found.clients[client]
            metrics_are(each, dealt.target, dealt.y[rows], predicted[rows], where)
            rests_on(each, part, judged(dealt, rows, predicted), 1, 1)
    rows, one = dealt.rows("test"), rows_model(model)
    found = one.evaluate(take(dealt.X, rows), y=dealt.y[rows])
    predicted = np.asarray(one.predict(take(dealt.X, rows)))
    metrics_are(found.metrics, dealt.target, dealt.y[rows], predicted, "rows at hand")
    count = oracle.judged_rows(dealt.target, dealt.y[rows], predicted)
    rests_on(found.metrics, "rows", count, 0, 0)


def judged(dealt: Any, rows: Any, predicted: Any) -> int:
    """Of how many of these rows metrics are."""
    return oracle.judged_rows(dealt.target, dealt.y[rows], predicted[rows])


def judged_clients(dealt: Any, part: str, predicted: Any) -> dict[int, Any]:
    """The rows of every client that has some to be judged by."""
    held = enumerate(dealt.parts[part])
    return {k: rows for k, rows in held if judged(dealt, rows, predicted)}


def metrics_are(found: Any, target: str, y: Any, predicted: Any, of: str) -> None:
    """Every metric that is defined is there, and right."""
    for name, value in figures(found).items():
        require(name in oracle.OF_TARGET[target], f"{name} has no oracle: add it to oracle.py")
        wanted = oracle.metric(target, name, y, predicted)
        close(value, wanted, f"{name} of {of}", rtol=max(1e-5, _digits(wanted)), atol=1e-6)
    for name in oracle.OF_TARGET[target]:
        wanted = oracle.metric(target, name, y, predicted)
        dwarfs = name == "r2" and wanted < -1e12  # a model that has diverged
        require(name in found or np.isnan(wanted) or dwarfs, f"no {name} of {of}")


def _digits(wanted: float) -> float:
    """Of R² of a model that has diverged, sums of squares know three digits."""
    return 1e-6 if wanted > -1e6 else 1e-3


def rests_on(found: Any, part: str, rows: int, clients: int, asked: int) -> None:
    """Every figure says these rows, of so many clients of those asked, and that none miss."""
    for figure in found.values():
        said = (figure.part, figure.rows, figure.clients, figure.asked, figure.is_whole)
        require(said == (part, rows, clients, asked, True), f"{figure!r} of {rows} {part} rows")


@surface
def scores(case: Case) -> None:
    """AUROC and log-loss of all and of each client, within their bounds, of all rows judged."""
    offered(case, "predict_proba")
    model, dealt = case.model, case.dealt
    p = by_owners(model, dealt, lambda one, X: np.asarray(one.predict_proba(X), dtype=float))
    found = model.evaluate(case.federation, "train", scores=True)
    held = dealt.parts["train"]
    each = [(found.metrics, dealt.rows("train"), len(held))]
    each += [(found.clients[k], rows, 1) for k, rows in enumerate(held)]
    for figures_of_rows, rows, clients in each:
        wanted = oracle.of_scores(dealt.target, dealt.y[rows], p[rows])
        for name, value in wanted.items():
            figure = figures_of_rows[name]
            close(float(figure), value, name, rtol=1e-4, atol=figure.bound + 1e-6)
            count = oracle.judged_rows(dealt.target, dealt.y[rows], np.nan_to_num(p[rows], nan=-1))
            rests_on({name: figure}, "train", count, clients, clients)


@surface
def history(case: Case) -> None:
    """Figures of the last round, on validation rows, are those of the model that came of it."""
    offered(case, "evaluate")
    model, dealt = case.model, case.dealt
    if not model.predicts or not (model.history_ or hasattr(_last(model), "rounds")):
        raise Absent
    if getattr(_last(model), "fine_tune", 0):  # which comes after the last round
        plain = model.clone()
        _last(plain).set_params(fine_tune=0)
        model = case.fit(plain, case.federation)
    require(model.history_, "rounds, and nothing in history_")
    last = {n: v for n, v in model.history_[-1].items() if n in oracle.OF_TARGET[dealt.target]}
    rows, predicted = dealt.rows("validation"), np.asarray(by_owners(model, dealt))
    held = judged_clients(dealt, "validation", predicted)
    metrics_are(last, dealt.target, dealt.y[rows], predicted[rows], "the last round")
    rests_on(last, "validation", judged(dealt, rows, predicted), len(held), 4)


@surface
def card(case: Case) -> None:
    """The figures of the card are those of evaluate, and its rows and clients those dealt."""
    model, dealt = case.model, case.dealt
    evaluation = None
    if model.predicts and dealt.y is not None:
        evaluation = model.evaluate(case.federation)
    text = model.card(evaluation)
    facts = dict(re.findall(r"^- ([\w ]+): (.+)$", text, flags=re.M))
    require(facts.get("clients") == "4", f"the card says clients: {facts.get('clients')}")
    rows = str(len(dealt.rows("train")))
    require(facts.get("rows") == rows, f"the card says rows: {facts.get('rows')}, not {rows}")
    require("nan" not in text.lower().split(), "the card says NaN")
    if dealt.target in NAMES:
        require(", ".join(NAMES[dealt.target]) in text, "the card does not name the classes")
    if evaluation is None:
        return
    held, every = dealt.rows("test"), np.asarray(by_owners(model, dealt))
    count, predicted = judged(dealt, held, every), every[held]
    names = [name for name in oracle.OF_TARGET[dealt.target] if name in facts]
    require(names, "no metric in the card")
    for name in names:
        wanted = oracle.metric(dealt.target, name, dealt.y[held], predicted)
        close(float(facts[name].split()[0]), wanted, f"{name} in the card", rtol=1e-3, atol=1e-4)
        whose = f"of {count} test rows of "
        require(whose in facts[name], f"the card says of {name} {facts[name]}, not {whose}")


# --- the same model elsewhere ---


@surface
def save(case: Case) -> None:
    """A model that was saved and loaded has the same attributes and says the same."""
    model, X = case.model, case.dealt.X
    with TemporaryDirectory() as folder:
        back = so.load(model.save(Path(folder) / "model.sol"))
    require(back.get_params(deep=False).keys() == model.get_params(deep=False).keys(), "parameters")
    learned = {name for name in vars(model) if name.endswith("_") and name != "history_"}
    lost = learned - {*vars(back)}
    require(not lost, f"lost: {sorted(lost)}")
    wanted = dict(_numbers(model.get_state()))
    for name, value in _numbers(back.get_state()):
        require(np.array_equal(value, wanted.pop(name, None), equal_nan=True), f"{name} differs")
    require(not wanted, f"lost: {sorted(wanted)}")
    close(by_owners(back, case.dealt), by_owners(model, case.dealt), "after load", rtol=0, atol=0)
    after_learner = [each.card().partition("## Data")[2] for each in (back, model)]
    require(after_learner[0] == after_learner[1], "the card after load is another")
    if model.predicts and hasattr(type(model), "predict_proba") and case.dealt.target in NAMES:
        p = [rows_model(each).predict_proba(X) for each in (back, model)]
        close(*p, "probabilities", rtol=0, atol=0)


@surface
def clone(case: Case) -> None:
    """A clone knows nothing, and learns the same from the same clients."""
    copy = case.model.clone()
    require(not [n for n in vars(copy) if n.endswith("_")], "a clone that knows something")
    case.fit(copy, case.dealt.federation(**case.options))
    wanted = by_owners(case.model, case.dealt)
    close(by_owners(copy, case.dealt), wanted, "a clone", rtol=0, atol=0)


@surface
def processes(case: Case) -> None:
    """Clients in other processes make the same model and the same figures."""
    with case.dealt.federation("processes", **case.options) as federation:
        model = case.fit(case.model.clone(), federation)
        close(by_owners(model, case.dealt), by_owners(case.model, case.dealt), "processes")
        if model.predicts:
            here = case.model.evaluate(case.federation).metrics
            there = figures(model.evaluate(federation).metrics)
            for name, value in figures(here).items():
                close(there[name], value, f"{name} in processes")


@surface
def export(case: Case) -> None:
    """ONNX Runtime says the same of the raw rows, written as the file describes its inputs."""
    import onnxruntime

    model, X = rows_model(case.model), case.dealt.X
    with TemporaryDirectory() as folder:
        path = model.export(Path(folder) / "model.onnx")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    said = dict(zip(names, session.run(None, _inputs(session, X)), strict=True))
    wanted = answers(model, X)
    found = said["prediction"] if "prediction" in said else next(iter(said.values()))
    close(np.asarray(found).reshape(wanted.shape), wanted, "ONNX Runtime", rtol=1e-4, atol=1e-5)
    if "probabilities" in said:
        close(said["probabilities"], model.predict_proba(X), "probabilities", 1e-4, 1e-5)


def _inputs(session: Any, X: Any) -> dict[str, Any]:
    names = [each.name for each in session.get_inputs()]
    if not hasattr(X, "iloc"):
        return {names[0]: dense(X).astype(np.float64)}
    found = {}
    for name in names:
        column = X[name]
        if name == "visit":
            column = (pd.to_datetime(column) - pd.Timestamp("1970-01-01")).dt.days
        if pd.api.types.is_numeric_dtype(column):
            found[name] = column.to_numpy(dtype=np.float64)[:, None]
        else:
            found[name] = column.astype(object).where(column.notna(), "").to_numpy()[:, None]
    return found


@surface
def to_sklearn(case: Case) -> None:
    """The estimator of scikit-learn says the same."""
    model, X = rows_model(case.model), case.dealt.X
    if case.dealt.is_frame:
        raise Absent  # it takes codes, which only Solera gives
    if isinstance(model, so.FedScaler) and hasattr(X, "toarray"):
        raise Absent  # scikit-learn's centres, and says that of sparse rows it does not
    estimator = model.to_sklearn()
    if hasattr(estimator, "predict"):
        close(estimator.predict(dense(X)), model.predict(X), "scikit-learn", rtol=1e-5, atol=1e-6)
    else:
        close(dense(estimator.transform(X)), answers(model, X), "scikit-learn", 1e-5, 1e-6)


@surface
def pipeline(case: Case) -> None:
    """With steps before it, it says what it says of rows that were prepared by hand."""
    dealt, train = case.dealt, case.dealt.rows("train")
    if dealt.kind == "prepared":
        rows = oracle.filled_and_encoded(dealt.X, train, first=case.cls not in ESTIMATES)
        by_hand = case.model.learners[-1].clone()
        pipe, steps = case.model, 1
    elif dealt.is_frame:
        raise Absent  # its own case, prepared
    else:
        rows, by_hand, steps = dealt.X, case.model.clone(), 0
        pipe = so.Pipeline(so.FedScaler(), case.model.clone())
        case.fit(pipe, dealt.federation(**case.options))
    hand = dealt.with_rows(oracle.standardised(rows, train))
    case.fit(by_hand, hand.federation(**case.options))
    where = "in a pipeline" if not steps else "in the pipeline that refusals name"
    close(by_owners(pipe, dealt), by_owners(by_hand, hand), where, rtol=1e-3, atol=1e-4)


@surface
def cross_validation(case: Case) -> None:
    """scikit-learn's scores of folds are those of models of these rows, judged by the others."""
    offered(case, "score")
    model, dealt = case.model, case.dealt
    federation = dealt.shared(**case.options)
    rows = dealt.rows("train")
    folds = [(np.flatnonzero(fold), np.flatnonzero(~fold)) for fold in _folds(len(rows))]
    found = cross_val_score(model.clone(), federation, cv=folds, error_score="raise")
    for (train, held), score in zip(folds, found, strict=True):
        options = {**case.options, "schema": federation.data.schema}
        part = dealt.federation(rows=rows[train], **options)
        by_hand = case.fit(model.clone(), part, watch=False)
        wanted = oracle.score(
            dealt.target, dealt.y[rows[held]], by_owners(by_hand, dealt)[rows[held]]
        )
        close(score, wanted, "score of a fold", rtol=_digits(wanted))


def _folds(rows: int) -> list[Any]:
    place = np.arange(rows)
    return [place % 3 != 0, place % 3 != 1]


# --- around the learner ---


@surface
def describe(case: Case) -> None:
    """Counts, gaps, quantiles and correlations are pandas's."""
    dealt = case.dealt
    found = so.describe(dealt.shared(**case.options))
    table = dealt.X if dealt.is_frame else pd.DataFrame(dense(dealt.X))
    rows = _described_rows(case, found)
    require(found.rows.tolist() == [len(r) for r in rows], f"rows {found.rows.tolist()}")
    held = table.iloc[np.concatenate(rows)]
    if dealt.has_labels:  # each is one more column
        labels = np.where(dealt.y[held.index] < 0, np.nan, dealt.y[held.index])
        counted = [each.sum(axis=0).tolist() for each in found.categories[-labels.shape[1] :]]
        wanted = [[(label == 0).sum(), (label == 1).sum()] for label in labels.T]
        require(counted == wanted, f"labels absent and present {counted}")
        held = held.assign(**{f"label {j}": label for j, label in enumerate(labels.T)})
    require(found.missing.sum(axis=0).tolist() == held.isna().sum().tolist(), "missing values")
    for j, name in enumerate(table.columns):
        column = held[name]
        if name == "visit":
            column = (pd.to_datetime(column) - pd.Timestamp("1970-01-01")).dt.days
        if not pd.api.types.is_numeric_dtype(column):
            counted = dict(
                zip(
                    found.schema.features[j].categories,
                    found.categories[j].sum(axis=0),
                    strict=True,
                )
            )
            require(counted == column.value_counts().to_dict(), f"categories {counted}")
            continue
        values = np.sort(column.dropna().to_numpy(dtype=float))
        for level, value in zip((0.05, 0.25, 0.5, 0.75, 0.95), found.quantiles[j], strict=True):
            slack = 1e-3 * np.ptp(values) + 1e-9
            low = np.quantile(values, level, method="lower") - slack
            high = np.quantile(values, level, method="higher") + slack
            require(low <= value <= high, f"the {level:.0%} quantile of {name} is {value}")
    if dealt.target in NAMES:
        counted = [(dealt.y[np.concatenate(rows)] == name).sum() for name in NAMES[dealt.target]]
        require(
            found.classes.sum(axis=0).tolist() == counted, f"classes {found.classes.sum(axis=0)}"
        )
    if not dealt.is_frame:
        close(
            found.correlations,
            _correlations(held[table.columns]),
            "correlations",
            rtol=1e-4,
            atol=1e-5,
        )


def _correlations(table: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return table.corr().to_numpy()


def _described_rows(case: Case, found: Any) -> list[Any]:
    """Whose rows it says that it describes."""
    part = getattr(found, "part", "train")
    return case.dealt.parts[part]


@surface
def other_rows(case: Case) -> None:
    """Rows that are none are refused by every method that takes rows, and by its name."""
    model, dealt = rows_model(case.model), case.dealt
    X = dense(dealt.X) if not dealt.is_frame else dealt.X.to_numpy()
    wrong = {
        "no rows": take(dealt.X, []),
        "a vector": X[0],
        "three columns": X[:, :3],
        "text": np.full((2, X.shape[1]), "a"),
        "complex numbers": np.ones((2, X.shape[1]), dtype=complex),
        "a federation": dealt.shared(**case.options),
        "None": None,
    }
    answered = []
    for name in ("predict", "predict_proba", "transform", "decision_function", "explain"):
        if not hasattr(type(model), name) or (transforms(model) and name != "transform"):
            continue
        for what, rows in wrong.items():
            if name == "explain" and what == "a vector":
                continue  # one row may be a vector there
            try:
                getattr(model, name)(rows)
            except so.errors.SoleraError:
                continue
            except Exception as error:
                answered.append(f"{name} of {what}: raw {type(error).__name__}: {error}")
            else:
                answered.append(f"{name} of {what} is answered")
    require(not answered, "; ".join(answered))


@surface
def categories(case: Case) -> None:
    """Other texts for the same categories change nothing, but where a tree cuts their order."""
    trees = hasattr(type(_last(case.model)), "feature_importances_")
    if case.dealt.kind != "text" or trees or transforms(case.model):
        raise Absent
    sexes, wards = {"f": "f", "m": "m"}, {"east": "b", "north": "a", "west": "c"}
    X = case.dealt.X.assign(sex=case.dealt.X.sex.map(sexes), ward=case.dealt.X.ward.map(wards))
    said = []
    for dealt in (case.dealt, case.dealt.with_rows(X)):
        model = so.Pipeline(so.FedScaler(), case.model.clone())
        case.fit(model, dealt.federation(**case.options))
        sure = model.predicts and case.dealt.target != "numbers"
        one = rows_model(model)
        said.append(one.predict_proba(dealt.X) if sure else by_owners(model, dealt))
    close(*said, "other texts for the same categories", 1e-4, 1e-5)


@surface
def personal(case: Case) -> None:
    """Every client's model is the network of what all share and what it keeps; rows need a name."""
    model, dealt = case.model, case.dealt
    if not model.is_personal:
        raise Absent
    learner = core_learner(model)
    X = dense(model.prepared(dealt.X) if isinstance(model, so.Pipeline) else dealt.X)
    sizes = [dealt.width, 8, dealt.outputs]
    sizes += [dealt.outputs] if isinstance(learner, so.MLFedAvg) else []
    layer = 0 if isinstance(learner, so.FedBN) else len(sizes) - 2
    states = case.federation.fitting(model._client_fit).states()
    for client in range(4):
        weights = oracle.own_weights(learner.weights_, states[client], sizes, layer)
        z = oracle.network(weights, sizes, X)
        found = model.at(client)
        if dealt.target == "numbers":
            close(found.predict(dealt.X), z[:, 0], f"client {client}", 1e-4, 1e-5)
            continue
        p = oracle.probabilities(dealt.target, z)
        if dealt.has_labels:
            p[:, unlearned(case, client)] = np.nan
        close(found.predict_proba(dealt.X), p, f"client {client}", 1e-4, 1e-5)
    for name in ("predict", "export", "score"):
        try:
            getattr(model, name)(*((dealt.X, dealt.y) if name == "score" else (dealt.X,)))
        except so.errors.UsageError as error:
            require("model.at(0).predict(X)" in (error.hint or ""), f"{name}: {error}")
        else:
            raise Wrong(f"{name} of rows that name no client")
