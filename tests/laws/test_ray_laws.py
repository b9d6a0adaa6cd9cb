"""Every learner of the law suite on Ray: the bytes of worker processes."""

from __future__ import annotations

import pytest
from cases import (
    ENGINES,
    averaging_module,
    federation_over,
    learner_cases,
    rows,
    small_transformer,
)

from solera.core.component import describe_fitted
from solera.core.payload import encode
from solera.learn.averaging.lora import base_name
from solera.learn.averaging.models import described

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
CASES = {name: (make, target) for name, make, target in learner_cases()}


@pytest.fixture(scope="module")
def engines():
    """By name and target: workers take seconds to start."""
    from solera.engines.ray import RayEngine

    base_name(small_transformer())
    described(averaging_module().model)  # workers know the networks that were there before them
    ray.init(
        address="local",
        num_cpus=1,
        object_store_memory=80 << 20,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    make = {"ray": lambda source: RayEngine(source, workers=1), "processes": ENGINES["processes-1"]}
    found = {}

    def engine(name, target):
        if (name, target) not in found:
            if name == "ray":  # one at a time: there is one core
                for key in [key for key in found if key[0] == "ray"]:
                    found.pop(key).close()
            found[name, target] = make[name](rows(target))
        return found[name, target]

    yield engine
    for one in found.values():
        one.close()
    ray.shutdown()


@pytest.mark.parametrize("name", sorted(CASES, key=lambda name: str(CASES[name][1])))
def test_same_bytes_as_processes(name, engines):
    make, target = CASES[name]
    fitted = []
    for engine in ("ray", "processes"):
        learner = make()
        learner.fit(federation_over(engines(engine, target), learner))
        fitted.append(encode(describe_fitted(learner)))
    assert fitted[0] == fitted[1]
