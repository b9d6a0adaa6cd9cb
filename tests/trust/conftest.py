"""Fixtures of tests of what owners let out."""

import pytest


@pytest.fixture(autouse=True)
def withholding(clients_may_withhold):
    """In all tests here."""
