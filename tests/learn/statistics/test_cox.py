"""FedCox is one Cox model over all rows with the client as stratum."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.duration.hazard_regression import PHReg

import solera as so
from solera.core.errors import DataError

PARTS = {
    "iid": so.partitions.IID(),
    "sizes": so.partitions.QuantitySkew(0.7),
    "dealt": so.partitions.Explicit([[*range(200)], [*range(200, 204)], [*range(204, 400)]]),
}


def trial(rows=400, seed=0, ties=True):
    """Times in tenths, so that many are tied."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 3)) * [1.0, 4.0, 0.5]
    event = draw.exponential(np.exp(-X @ [0.5, -0.1, 0.8]))
    censored = draw.exponential(2.0, rows)
    time = np.minimum(event, censored)
    time = np.ceil(time * 10) / 10 if ties else time
    return X, np.column_stack([time, event <= censored]).astype(float)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("partition", PARTS)
def test_equals_statsmodels_with_the_client_as_stratum(partition, ties):
    X, y = trial(ties=ties)
    clients = 3 if partition == "dealt" else 5
    assignment = PARTS[partition].assign(len(X), y, clients=clients, seed=2)
    data = so.data.FederatedData.of(X, y, assignment)
    strata = np.zeros(len(X), dtype=int)
    for k in range(clients):
        strata[assignment.index[assignment.offsets[k] : assignment.offsets[k + 1]]] = k
    model = so.FedCox().fit(so.simulate(data))
    truth = PHReg(y[:, 0], X, status=y[:, 1], strata=strata, ties="efron").fit(
        tol=1e-12, disp=False
    )
    np.testing.assert_allclose(model.params_, truth.params, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(model.standard_errors, truth.bse, rtol=1e-6)
    np.testing.assert_allclose(model.log_likelihood_, truth.llf, rtol=1e-8)
    np.testing.assert_allclose(model.summary().p_value, truth.pvalues, rtol=1e-4)
    np.testing.assert_allclose(model.predict(X), np.exp(X @ model.params_), rtol=1e-12)


def test_equals_lifelines():
    """CoxPHFitter(strata=…) of lifelines 0.30.3, precision 1e-12, on these rows.

    It needs an older pandas than ours, so its numbers are written down here.
    """
    X, y = trial()
    data = so.data.FederatedData(X, y, np.arange(0, 401, 100))
    model = so.FedCox().fit(so.simulate(data))
    coef = [0.540672652394, -0.101635837080, 0.664738199008]
    errors = [0.075465797781, 0.017533282831, 0.143933167597]
    np.testing.assert_allclose(model.params_, coef, rtol=1e-6)
    np.testing.assert_allclose(model.standard_errors, errors, rtol=1e-6)
    assert model.log_likelihood_ == pytest.approx(-878.0365774585532, rel=1e-9)


def test_what_is_wrong_is_named():
    X, y = trial(rows=60)
    with pytest.raises(DataError, match="two columns"):
        so.FedCox().fit(so.simulate(X, y[:, 0], clients=2))
    with pytest.raises(DataError, match="'x3' is constant or follows"):
        so.FedCox().fit(so.simulate(np.column_stack([X, X[:, 0]]), y, clients=2))
    with pytest.raises(DataError, match="not converged"):
        so.FedCox(rounds=2).fit(so.simulate(X, y, clients=2))


def test_summary_is_a_table():
    X, y = trial()
    model = so.FedCox().fit(so.simulate(X, y, clients=3))
    assert "hazard ratio" in str(model.summary())
    assert "stratified by client" in model._repr_html_()
