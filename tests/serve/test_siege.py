"""A few seconds of what ``benchmarks/hostile.py`` does for five minutes."""

from __future__ import annotations

import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from siege import Siege  # noqa: E402


@pytest.mark.parametrize("seconds", [5, pytest.param(300, marks=pytest.mark.slow)])
def test_honest_clients_are_served_while_others_attack(tmp_path, seconds):
    fared = Siege(tmp_path).run(seconds)
    print(fared)
    assert fared.failed == []
    assert all(fared.sent[who] > 0 for who in ("stranger", "client", "driver"))
    assert fared.answers[200] > 0, "who keeps to their share is answered"
    assert not any(status >= 500 for status in fared.answers)
    assert fared.grown < 50e6
