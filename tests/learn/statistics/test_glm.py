"""FedGLM is statsmodels' GLM on the pooled rows, however they are dealt."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

import solera as so
from solera.core.errors import DataError, UsageError

FAMILIES = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}
PARTITIONS = {
    "iid": so.partitions.IID(),
    "sizes": so.partitions.QuantitySkew(0.4),
    "sorted": so.partitions.Explicit([[*range(30)], [*range(30, 33)], [*range(33, 400)]]),
}


def table(family, rows=400, seed=1):
    """Columns of different sizes, an exposure and weights; responses of the family."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 3)) * [1.0, 5.0, 0.2]
    X[:, 2] = X[:, 2] > 0
    offset, weights = draw.normal(size=rows) * 0.3, draw.uniform(0.5, 2.0, rows)
    eta = 0.4 + X @ [0.5, -0.1, 0.3] + offset
    y = {
        "gaussian": lambda: eta + draw.normal(size=rows),
        "binomial": lambda: (draw.random(rows) < 1 / (1 + np.exp(-eta))).astype(int),
        "poisson": lambda: draw.poisson(np.exp(eta)).astype(float),
        "gamma": lambda: draw.gamma(2.0, np.exp(eta) / 2.0),
    }[family]()
    return np.column_stack([X, offset, weights]), y


def pooled(family, X, y, **options):
    design = sm.add_constant(X[:, :3])
    extra = {"offset": X[:, 3], "var_weights": X[:, 4]} if options.get("extra") else {}
    model = sm.GLM(np.asarray(y, dtype=float), design, family=FAMILIES[family], **extra)
    return model.fit(tol=1e-14, maxiter=200, use_t=family in ("gaussian", "gamma"))


def federated(family, X, y, *, extra=False, policy=None, **simulated):
    X = X if extra else X[:, :3]
    names = {"offset": "x3", "weights": "x4"} if extra else {}
    fed = so.simulate(X, y, seed=0, policy=policy, **({"clients": 5} | simulated))
    return so.FedGLM(family, **names).fit(fed)


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_statsmodels_on_the_pooled_rows(family, partition, extra):
    X, y = table(family)
    clients = 3 if partition == "sorted" else 6
    model = federated(family, X, y, extra=extra, partition=PARTITIONS[partition], clients=clients)
    truth = pooled(family, X, y, extra=extra)
    np.testing.assert_allclose(model.params_, truth.params, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(model.standard_errors, truth.bse, rtol=1e-8)
    np.testing.assert_allclose(model.scale_, truth.scale, rtol=1e-8)
    np.testing.assert_allclose(model.deviance_, truth.deviance, rtol=1e-8)
    np.testing.assert_allclose(model.log_likelihood_, truth.llf, rtol=1e-8)
    np.testing.assert_allclose(model.aic, truth.aic, rtol=1e-8)
    summary = model.summary()
    np.testing.assert_allclose(summary.p_value, truth.pvalues, rtol=1e-6, atol=1e-300)
    np.testing.assert_allclose(summary.interval, truth.conf_int(), rtol=1e-7, atol=1e-7)
    means = truth.predict(sm.add_constant(X[:, :3]), offset=X[:, 3] if extra else None)
    own = X if extra else X[:, :3]
    if family == "binomial":
        np.testing.assert_allclose(model.predict_proba(own)[:, 1], means, rtol=1e-7)
        assert np.array_equal(model.predict(own), (means > 0.5).astype(int))
    else:
        np.testing.assert_allclose(model.predict(own), means, rtol=1e-7)


def test_summary_is_a_table_of_text_and_of_html():
    X, y = table("poisson")
    model = federated("poisson", X, y)
    text = str(model.summary(level=0.9))
    for word in ("poisson model", "AIC", "rate ratio", "p-value", "lower 90%", "intercept", "x2"):
        assert word in text
    assert f"{model.params_[1]:.4f}" in text
    html = model._repr_html_()
    assert "<table>" in html
    assert "standard error" in html
    frame = model.summary().to_pandas()
    assert frame.loc["x1", "estimate"] == model.params_[2]
    assert frame.loc["x1", "rate ratio"] == np.exp(model.params_[2])


def test_saved_and_in_a_pipeline(tmp_path):
    X, y = table("binomial")
    fed = so.simulate(X[:, :3], y, clients=4)
    model = so.Pipeline(so.FedScaler(), so.FedGLM("binomial")).fit(fed)
    model.save(tmp_path / "model.sol")
    back = so.load(tmp_path / "model.sol")
    assert np.array_equal(back.predict(X[:, :3]), model.predict(X[:, :3]))
    plain = federated("binomial", X, y)
    np.testing.assert_allclose(
        model.predict_proba(X[:, :3]), plain.predict_proba(X[:, :3]), rtol=1e-9
    )
    assert model.evaluate(fed, "train").metrics["accuracy"] > 0.5


def test_what_has_no_estimate_is_named():
    X, y = table("gaussian")
    with pytest.raises(DataError, match="'x3' is constant or follows"):
        so.FedGLM().fit(so.simulate(np.column_stack([X[:, :3], X[:, 0] + X[:, 1]]), y, clients=3))
    with pytest.raises(DataError, match="two classes"):
        so.FedGLM("binomial").fit(so.simulate(X, y, clients=3))
    with pytest.raises(DataError, match=r"astype\(float\)"):
        so.FedGLM("poisson").fit(so.simulate(X, np.arange(len(X)) % 4, clients=3))
    with pytest.raises(so.errors.SoleraError, match="positive numbers"):
        so.FedGLM("gamma").fit(so.simulate(X, y, clients=3))
    with pytest.raises(so.errors.SoleraError, match="not above 0"):
        so.FedGLM(weights="x0").fit(so.simulate(X, y, clients=3))
    with pytest.raises(so.errors.SoleraError, match="expo"):
        so.FedGLM(offset="expo").fit(so.simulate(X, y, clients=3))
    with pytest.raises(UsageError, match="both"):
        so.FedGLM(offset="x3", weights="x3").fit(so.simulate(X, y, clients=3))


def test_classes_that_are_told_apart_do_not_converge():
    X, _ = table("gaussian")
    fed = so.simulate(X[:, :2], (X[:, 0] > 0).astype(int), clients=3)
    with pytest.raises(so.errors.SoleraError, match=r"not converged|not finite|no estimate"):
        so.FedGLM("binomial").fit(fed)
