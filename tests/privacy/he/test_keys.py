"""Keys on the client's disk: for their owner alone, never lost by accident."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

from solera.core.errors import PayloadError, UsageError
from solera.privacy import he
from solera.privacy.he import keys

posix = pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")


def created(folder: Any, name: str) -> he.SecretKey:
    pytest.importorskip("tenseal", reason="the extra 'he' (tenseal) is not installed")
    return keys.create(folder, name, he.SMALL_CLIENT)


def test_keys_are_stored_and_loaded(tmp_path: Any) -> None:
    secret = created(tmp_path / "keys", "cardio")
    encrypted = he.encrypt(keys.load_public(tmp_path / "keys", "cardio"), [2.5], magnitude=2)
    found = he.decrypt(keys.load(tmp_path / "keys", "cardio"), encrypted)
    assert found == pytest.approx(2.5, rel=1e-6)
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == [
        "cardio.public",
        "cardio.secret",
    ]
    keys.store(tmp_path / "other", "shared", secret)
    assert keys.load(tmp_path / "other", "shared").fingerprint == secret.fingerprint


def test_a_secret_is_not_overwritten_by_accident(tmp_path: Any) -> None:
    first = created(tmp_path / "keys", "cardio")
    with pytest.raises(UsageError, match=r"cardio\.secret exists.*overwrite=True"):
        keys.create(tmp_path / "keys", "cardio", he.SMALL_CLIENT)
    assert keys.load(tmp_path / "keys", "cardio").fingerprint == first.fingerprint
    assert keys.load_public(tmp_path / "keys", "cardio").fingerprint == first.fingerprint
    second = keys.create(tmp_path / "keys", "cardio", he.SMALL_CLIENT, overwrite=True)
    assert keys.load(tmp_path / "keys", "cardio").fingerprint == second.fingerprint
    assert keys.load_public(tmp_path / "keys", "cardio").fingerprint == second.fingerprint


@posix
def test_secret_files_are_for_their_owner_alone(tmp_path: Any) -> None:
    folder = tmp_path / "keys"
    before = os.umask(0)
    try:
        created(folder, "cardio")
    finally:
        os.umask(before)
    path = folder / "cardio.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(UsageError, match=f"mode {mode:o}.*chmod 600"):
            keys.load(folder, "cardio")
    path.chmod(0o600)
    keys.load(folder, "cardio")
    (folder / "link.secret").symlink_to(path)
    with pytest.raises(UsageError, match="link"):
        keys.load(folder, "link")
    folder.chmod(0o755)
    with pytest.raises(UsageError, match=r"mode 755.*chmod 700"):
        keys.create(folder, "second", he.SMALL_CLIENT)


def test_missing_damaged_and_strangely_named_keys(tmp_path: Any) -> None:
    folder = tmp_path / "keys"
    for read in (keys.load, keys.load_public):
        with pytest.raises(UsageError, match="No such file"):
            read(folder, "absent")
        for name in ("", "../x", "a/b", ".hidden", "a b", "x\0"):
            with pytest.raises(UsageError, match="key name"):
                read(folder, name)
    created(folder, "cardio")
    data = bytearray((folder / "cardio.secret").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "cardio.secret").write_bytes(data)
    with pytest.raises(PayloadError, match="checksum"):
        keys.load(folder, "cardio")
