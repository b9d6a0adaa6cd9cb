"""Fixtures of tests of what owners let out."""

import pytest
from tests.trust import withholding


@pytest.fixture(autouse=True)
def clients_may_withhold(monkeypatch):
    withholding.install(monkeypatch)
