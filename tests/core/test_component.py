from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.component import Component, build, describe
from solera.core.config import component
from solera.core.errors import PayloadError, UsageError
from solera.core.payload import decode, encode


class Nested(Component):
    def __init__(self, inner=None, *, size=3):
        self.inner = inner
        self.size = size


class Listed(Component):
    def __init__(self, *parts):
        self.parts = parts


def test_parameters_nest_and_print():
    outer = Nested(Nested(size=5))
    assert outer.get_params()["inner__size"] == 5
    assert repr(outer) == "Nested(inner=Nested(size=5))"
    outer.set_params(inner__size=7, size=1)
    assert outer.inner.size == 7
    with pytest.raises(UsageError, match=r"no parameter 'sise' \(did you mean 'size'\?\)"):
        outer.set_params(sise=1)


def test_clones_share_nothing():
    part = Nested([np.zeros(2), {"a": Nested()}])
    copy = part.clone()
    assert copy == part
    copy.inner[0][0] = 1
    assert copy != part
    assert part.inner[0][0] == 0


def test_starred_parameters():
    parts = Listed(Nested(), Nested(size=9))
    assert repr(parts) == "Listed(Nested(), Nested(size=9))"
    assert parts.clone() == parts
    assert build(decode(encode(describe(parts)))).parts[1].size == 9


def test_only_data_and_known_classes_travel():
    with pytest.raises(PayloadError, match="Python code"):
        describe(Nested(len))
    with pytest.raises(UsageError, match="'Nobody' is not installed"):
        build({"$component": "Nobody", "params": {}})
    with pytest.raises(UsageError, match="no parameter colour"):
        build({"$component": "Nested", "params": {"colour": 1}})


def _define(name, module):
    return type(name, (Nested,), {"__module__": module, "__qualname__": name})


def test_a_name_belongs_to_one_class_of_a_package(monkeypatch):
    monkeypatch.setattr(Component, "registry", dict(Component.registry))
    _define("Tree", "acme.trees")
    with pytest.raises(UsageError, match="'acme:Tree' is already defined"):
        _define("Tree", "acme.shrubs")


def test_components_of_other_packages_may_have_any_name(monkeypatch):
    monkeypatch.setattr(Component, "registry", dict(Component.registry))
    theirs = _define("FedLinear", "acme.linear")
    assert describe(theirs(size=3))["$component"] == "acme:FedLinear"
    assert type(build(describe(theirs()))) is theirs
    assert type(build(describe(so.FedLinear()))) is so.FedLinear
    assert type(build({"$component": "FedLinear", "params": {}})) is so.FedLinear
    only = _define("Sapling", "acme.trees")
    assert type(build({"$component": "Sapling", "params": {}})) is only
    _define("Sapling", "garden")
    with pytest.raises(UsageError, match=r"several packages \(acme:Sapling, garden:Sapling\)"):
        build({"$component": "Sapling", "params": {}})


def test_files_name_components_of_other_packages(monkeypatch):
    monkeypatch.setattr(Component, "registry", dict(Component.registry))
    theirs = _define("FedLinear", "acme.linear")
    only = _define("Sapling", "acme.trees")
    assert type(component(Nested, {"kind": "acme:FedLinear", "size": 2})) is theirs
    assert type(component(Nested, {"kind": "Sapling"})) is only
    with pytest.raises(UsageError, match="there is no nested 'FedTree'"):
        component(Nested, {"kind": "FedTree"})
