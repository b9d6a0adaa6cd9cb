"""Things configured by their constructor alone: learners, selectors, partitions, aggregations.

The constructor stores its arguments unchanged, as in scikit-learn, so copying, printing, comparing
and saving need no code of their own: a component *is* its class and its parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_type_hints

import numpy as np

from solera.core.constraints import (
    check_names,
    check_values,
    declared_types,
    nearest,
    parameters_of,
)
from solera.core.errors import PayloadError, UsageError
from solera.core.registry import load_packages, new_registry

_COMPONENT = "$component"


class _CheckedOnceMade(type):
    """Compares a component's parameters with their declarations after its constructor ran."""

    if not TYPE_CHECKING:  # a type checker reads the constructor itself

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            kwargs = {cls.aliases.get(name, name): value for name, value in kwargs.items()}
            check_names(cls.__name__, cls.parameters(), kwargs)
            component = super().__call__(*args, **kwargs)
            component.check_params()
            return component

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's parameters, for :func:`inspect.signature`."""
        return inspect.Signature(parameters_of(cls))


class Component(metaclass=_CheckedOnceMade):
    """Base class: parameters in, parameters out.

    Subclasses are registered by their name, those of other packages as ``package:Name``.
    """

    registry: ClassVar[dict[str, type[Component]]] = new_registry()
    stored_as: ClassVar[Mapping[str, str]] = {}
    """Where parameters are kept whose names are those of methods."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Parameters under names that others call them by."""

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _inherit_parameters(cls)
        if abstract or cls.__name__.startswith("_"):
            return
        name = component_name(cls)
        known = Component.registry.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise UsageError(
                f"component {name!r} is already defined in {known.__module__}",
                hint="choose another class name: saved models refer to components by name",
            )
        Component.registry[name] = cls

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        """Names of the constructor's parameters, in order."""
        parameters = parameters_of(cls)
        for p in parameters:
            if p.kind is p.VAR_KEYWORD:
                raise TypeError(f"{cls.__name__}: a component names every parameter, no **{p}")
        return tuple(p.name for p in parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; ``deep`` adds those of nested components as ``outer__inner``."""
        places = self.stored_as
        params = {name: getattr(self, places.get(name, name)) for name in self.parameters()}
        if deep:
            for name, value in list(params.items()):
                if isinstance(value, Component):
                    nested = value.get_params(deep=True)
                    params.update({f"{name}__{inner}": v for inner, v in nested.items()})
        return params

    def set_params(self, **params: Any) -> Self:
        """Change parameters in place; ``outer__inner`` reaches into a nested component."""
        for key, value in params.items():
            name, _, inner = key.partition("__")
            name = self.aliases.get(name, name)
            if name not in self.parameters():
                raise UsageError(
                    f"{type(self).__name__} has no parameter {name!r}",
                    hint=nearest(name, self.parameters()),
                )
            place = self.stored_as.get(name, name)
            if inner:
                getattr(self, place).set_params(**{inner: value})
            else:
                setattr(self, place, value)
        return self

    def check_params(self) -> None:
        """Raise :class:`UsageError` for a parameter that its annotation does not allow.

        This happens when a component is made and again before it is used, because
        :meth:`set_params` may have changed it. A subclass adds what an annotation cannot say, such
        as rules about two parameters.
        """
        params = self.get_params(deep=False)
        check_values(self, declared_types(type(self)), params)
        for value in params.values():
            if isinstance(value, Component):
                value.check_params()

    def described_params(self) -> dict[str, Any]:
        """The parameters as :func:`describe` sees them."""
        return self.get_params(deep=False)

    @classmethod
    def make(cls, params: Mapping[str, Any]) -> Self:
        """The component with these parameters; the constructor's ``*name`` is a list among them."""
        given = dict(params)
        starred = given.pop(name, ()) if (name := _starred(cls)) else ()
        return cls(*starred, **given)

    def clone(self) -> Self:
        """An equal component that shares nothing mutable and has learned nothing."""
        return self.make({name: _copy(v) for name, v in self.get_params(deep=False).items()})

    def __sklearn_clone__(self) -> Self:
        return self.clone()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return _equal(self.get_params(deep=False), other.get_params(deep=False))

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    def __repr__(self) -> str:
        defaults = {p.name: p.default for p in parameters_of(type(self))}
        starred = _starred(type(self))
        shown = [
            f"{name}={value!r}"
            for name, value in self.get_params(deep=False).items()
            if name != starred and not _equal(value, defaults[name])
        ]
        if starred:
            shown = [*(repr(value) for value in getattr(self, starred)), *shown]
        return f"{type(self).__name__}({', '.join(shown)})"


def component_name(cls: type[Any]) -> str:
    """What files and messages call a class: its name, after its package if that is not Solera."""
    package = cls.__module__.partition(".")[0]
    return cls.__name__ if package == __name__.partition(".")[0] else f"{package}:{cls.__name__}"


def _inherit_parameters(cls: type[Any]) -> None:
    """A constructor that ends in ``**name`` has the parameters of the base class's as well."""
    init = cls.__dict__.get("__init__")
    if init is None:
        return
    signature = inspect.signature(init)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(own) == len(signature.parameters):
        return
    base: Any = getattr(cls.__mro__[1], "__init__")  # noqa: B009
    names = {p.name for p in own}
    more = [p for p in inspect.signature(base).parameters.values() if p.name not in names]
    init.__signature__ = signature.replace(parameters=[*own, *more])
    hints = {
        name: hint
        for name, hint in get_type_hints(base, include_extras=True).items()
        if name not in names
    }
    init.__annotations__ = {**init.__annotations__, **hints}


def _starred(cls: Any) -> str | None:
    """The name of the constructor's ``*args``, if it has one."""
    starred = [p.name for p in parameters_of(cls) if p.kind is p.VAR_POSITIONAL]
    return starred[0] if starred else None


def installed_components() -> dict[str, type[Component]]:
    """All components by name, including those of packages with a ``solera.learners`` entry."""
    load_packages("solera.learners")
    return Component.registry


def full_name(name: str) -> str:
    """The name of the component that is meant; ``package:`` may be left out where one has it."""
    known = Component.registry if name in Component.registry else installed_components()
    if name in known:
        return name
    same = sorted(other for other in known if other.endswith(f":{name}"))
    if not same:
        raise UsageError(
            f"component {name!r} is not installed", hint="import the package that defines it first"
        )
    if len(same) > 1:
        raise UsageError(f"component {name!r} is in several packages", hint=", ".join(same))
    return same[0]


def describe(value: Any) -> Any:
    """A payload that :func:`build` turns back into ``value``.

    Components become their name and parameters; code never travels, so functions are refused.
    """
    if isinstance(value, Component):
        params = {name: describe(v) for name, v in value.described_params().items()}
        return {_COMPONENT: component_name(type(value)), "params": params}
    if isinstance(value, Mapping):
        return {key: describe(v) for key, v in value.items()}
    if isinstance(value, tuple | list):
        return [describe(v) for v in value]
    if callable(value):
        name = getattr(value, "__name__", repr(value))
        raise PayloadError(
            f"{name} is Python code and cannot be described as data",
            hint="use a built-in option or a Component subclass instead",
        )
    return value


def build(description: Any) -> Any:
    """Rebuild what :func:`describe` described, from registered classes only."""
    if isinstance(description, Mapping):
        if _COMPONENT not in description:
            return {key: build(v) for key, v in description.items()}
        name = description[_COMPONENT]
        cls = Component.registry[full_name(name)]
        params = {key: build(v) for key, v in description["params"].items()}
        unknown = sorted(set(params) - set(cls.parameters()))
        if unknown:
            raise UsageError(f"{name} has no parameter {', '.join(unknown)} in this version")
        return cls.make(params)
    if isinstance(description, list):
        return [build(v) for v in description]
    return description


def describe_fitted(component: Any) -> dict[str, Any]:
    """Component and all it has learned, as a payload; see :func:`build_fitted`."""
    return {"made": describe(component), "learned": component.get_state()}


def build_fitted(description: Mapping[str, Any]) -> Any:
    """Rebuild what :func:`describe_fitted` described."""
    component = build(description["made"])
    component.set_state(description["learned"])
    return component


def _copy(value: Any) -> Any:
    if isinstance(value, Component):
        return value.clone()
    if isinstance(value, list):
        return [_copy(v) for v in value]
    if isinstance(value, tuple):
        return tuple(_copy(v) for v in value)
    if isinstance(value, dict):
        return {key: _copy(v) for key, v in value.items()}
    if isinstance(value, np.ndarray):
        return value.copy()
    return value


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)
