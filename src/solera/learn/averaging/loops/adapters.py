"""Loops that other libraries run, as arguments of :class:`~solera.FedTorch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from solera.core.errors import MissingExtra, UsageError
from solera.learn.averaging.training.devices import torch

Loops = dict[str, Any]
_LEARNED = ("coef_", "intercept_", "coefs_", "intercepts_")
"""What estimators of scikit-learn learn that has a mean."""


def hugging_face(make_trainer: Callable[[Any, Any, Any], Any]) -> Loops:
    """The loops of a ``transformers.Trainer``; with PEFT the weights of adapters alone travel.

    ``make_trainer(model, dataset, context)`` makes the trainer, as a script does. Its metrics
    are those of the trainer.

    >>> def trainer(model, dataset, context):
    ...     arguments = TrainingArguments(output_dir=str(context.folder), num_train_epochs=1)
    ...     return Trainer(model=model, args=arguments, train_dataset=dataset)
    >>> so.FedTorch(make_model, **so.learn.adapters.hugging_face(trainer))  # doctest: +SKIP
    """

    def made(model: Any, loader: Any, context: Any) -> Any:
        trainer = make_trainer(model, loader.dataset, context)
        trainer.args.seed = context.seed % 2**31
        trainer.args.disable_tqdm, trainer.args.report_to = True, []
        trainer.args.save_strategy = "no"
        return trainer

    def train(model: Any, loader: Any, context: Any) -> Any:
        return {"loss": made(model, loader, context).train().training_loss}

    def evaluate(model: Any, loader: Any, context: Any) -> Any:
        metrics = made(model, loader, context).evaluate(loader.dataset)
        timed = ("runtime", "per_second", "preparation_time", "epoch")
        return {
            name.removeprefix("eval_"): value
            for name, value in metrics.items()
            if not name.endswith(timed)
        }

    def predict(model: Any, batch: Any, context: Any) -> Any:
        return model(**batch).logits

    return {"train": train, "evaluate": evaluate, "predict": predict}


def lightning(**options: Any) -> Loops:
    """The loops of a ``lightning.Trainer`` with these options; metrics are what modules log.

    ``training_step`` trains, ``validation_step`` evaluates, ``forward`` predicts.
    """
    quiet = {
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **options,
    }

    def trainer(context: Any) -> Any:
        library = _library("lightning", "lightning")
        return library.Trainer(default_root_dir=str(context.folder), **quiet)

    def train(model: Any, loader: Any, context: Any) -> Any:
        runs = trainer(context)
        runs.fit(model, loader)
        return dict(runs.callback_metrics)

    def evaluate(model: Any, loader: Any, context: Any) -> Any:
        return trainer(context).validate(model, loader, verbose=False)[0]

    return {"train": train, "evaluate": evaluate}


def keras(**options: Any) -> Loops:
    """The loops of a compiled ``keras.Model`` on its torch backend: ``fit`` and ``evaluate``.

    ``options`` are those of ``fit``, such as ``epochs=2``.
    """
    if _library("keras", "keras").backend.backend() != "torch":
        raise UsageError("Keras runs on another backend", hint="KERAS_BACKEND=torch, before import")

    def train(model: Any, loader: Any, context: Any) -> Any:
        history = model.fit(loader, verbose=0, **options).history
        return {name: values[-1] for name, values in history.items()}

    def evaluate(model: Any, loader: Any, context: Any) -> Any:
        return model.evaluate(loader, verbose=0, return_dict=True)

    return {"train": train, "evaluate": evaluate}


def scikit_learn(estimator: Any, *, columns: int, classes: Sequence[Any] | None = None) -> Loops:
    """An estimator of scikit-learn whose coefficients are averaged, with its model.

    One with ``partial_fit`` learns batch by batch, another goes on from the coefficients by
    ``fit`` with ``warm_start=True``. ``classes`` are those of a classifier.

    >>> from sklearn.linear_model import SGDClassifier
    >>> X, y, X_test, y_test = so.datasets.digits()
    >>> loops = so.learn.adapters.scikit_learn(SGDClassifier(), columns=64, classes=range(10))
    >>> model = so.FedTorch(**loops, rounds=5).fit(so.simulate(X, y, clients=5, seed=0))
    >>> model.score(X_test, y_test) > 0.8
    True
    """
    from sklearn.base import clone

    outputs = None if classes is None else len(classes)
    begins = hasattr(estimator, "partial_fit")
    if not begins and not getattr(estimator, "warm_start", False):
        raise UsageError(
            f"{estimator!r} has no partial_fit and begins anew in every round",
            hint="warm_start=True goes on from coefficients; so.FedForest grows trees",
        )

    def learn(fitted: Any, X: Any, y: Any) -> None:
        known = {"classes": np.arange(outputs)} if outputs else {}
        fitted.partial_fit(X, y, **known) if begins else fitted.fit(X, y)

    def fresh() -> Any:
        fitted, rows = clone(estimator), max(outputs or 0, 4)
        draw = np.random.default_rng(0).normal(size=(rows, columns))
        learn(fitted, draw, np.arange(rows) % outputs if outputs else draw[:, 0])
        return fitted

    def model() -> Any:
        holder = torch().nn.Module()
        holder.estimator = fresh()
        for name, values in _arrays(holder.estimator).items():
            first = values if name.startswith(("coefs", "intercepts")) else np.zeros_like(values)
            holder.register_parameter(name, torch().nn.Parameter(torch().tensor(first)))
        return holder

    def filled(holder: Any) -> Any:
        for name, values in _arrays(holder.estimator).items():
            values[...] = getattr(holder, name).detach().numpy()
        return holder.estimator

    def train(holder: Any, loader: Any, context: Any) -> None:
        fitted = filled(holder)
        batches = [[part.numpy() for part in batch] for batch in loader]
        if not begins:
            batches = [[np.concatenate(part) for part in zip(*batches, strict=True)]]
        for X, y in batches:
            learn(fitted, X, y)
        for name, values in _arrays(fitted).items():
            getattr(holder, name).data.copy_(torch().tensor(values))

    def evaluate(holder: Any, loader: Any, context: Any) -> Any:
        fitted = filled(holder)
        scores = [(fitted.score(X.numpy(), y.numpy()), len(y)) for X, y in loader]
        values, weights = np.array(scores).T
        return {"score": np.average(values, weights=weights)}

    def predict(holder: Any, batch: Any, context: Any) -> Any:
        answers = filled(holder).predict(batch[0].numpy())
        return context.classes[answers] if outputs else answers

    return {"model": model, "train": train, "evaluate": evaluate, "predict": predict}


def _arrays(fitted: Any) -> dict[str, Any]:
    """The arrays that a fitted estimator has learned, by names; those of layers one by one."""
    arrays = {}
    for name in _LEARNED:
        value = getattr(fitted, name, None)
        if isinstance(value, list):
            arrays.update({f"{name}{i}": part for i, part in enumerate(value)})
        elif value is not None:
            arrays[name] = value
    if not arrays:
        raise UsageError(
            f"{type(fitted).__name__} learns no coefficients that have a mean",
            hint="so.FedForest, so.FedHistGBDT and so.learn.FedBagging grow trees",
        )
    return arrays


def _library(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra.of(f"a loop of {name}", extra) from error
