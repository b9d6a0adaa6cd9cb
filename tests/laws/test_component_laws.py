"""What every installed component declares about its parameters."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import solera
from solera.core.component import Component
from solera.core.constraints import declared_types, violation


def _components() -> dict[str, type[Component]]:
    for module in pkgutil.walk_packages(solera.__path__, "solera."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "triton":  # comes with PyTorch for graphics cards alone
                raise
    ours = Component.registry.items()
    return {name: cls for name, cls in ours if cls.__module__.startswith("solera.")}


COMPONENTS = _components()


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_annotations_resolve_and_allow_the_defaults(name):
    cls = COMPONENTS[name]
    types = declared_types(cls)
    assert set(types) == set(cls.parameters())
    for parameter in cls.__signature__.parameters.values():
        if parameter.default is not parameter.empty:
            rule = violation(parameter.default, types[parameter.name])
            assert rule is None, f"{name}({parameter.name}={parameter.default!r}): {rule}"
