"""Backups: taken while a job runs, restored into the same and another database, gone on with."""

from __future__ import annotations

import shutil
import tarfile
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.errors import UsageError
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from databases import new_database  # noqa: E402
from network import Network, Program, kill  # noqa: E402

from solera.serve.audit import AuditDamaged, AuditLog, verify  # noqa: E402
from solera.serve.connection import CoordinatorError  # noqa: E402
from solera.serve.coordinator import backup as backups  # noqa: E402
from solera.serve.coordinator.backup import Damaged, back_up, last_backup, restore  # noqa: E402
from solera.serve.coordinator.run import coordinator_app, database_of  # noqa: E402
from solera.serve.coordinator.store.blobs import Blobs  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402

SERVE = """
import sys
from solera.serve.coordinator.run import serve
folder, host, port, certificate, key, *database = sys.argv[1:]
serve(folder, host=host, port=int(port), certificate=certificate, key=key,
      database=database[0] if database else None)
"""
rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
Y = (X @ rng.normal(size=(3, 2))).argmax(axis=1)


def data():
    return so.data.FederatedData(X, Y, np.array([0, 35, 60]))


def fitted(federation) -> bytes:
    model = so.FedLinear(rounds=6, epochs=1, batch_size=8).fit(federation)
    return encode(describe_fitted(model))


def check_log(folder: Path) -> int:
    key = Identity.load(folder / "identity").sign_key
    report = verify(folder / "audit.log", key)
    assert report.ok, report.problems
    return report.head.n


def test_a_job_goes_on_from_a_backup_in_the_same_and_in_another_database(tmp_path, postgres):
    network = Network(tmp_path)
    network.start()
    home, archives = tmp_path / "coordinator", tmp_path / "archives"
    expected = fitted(so.simulate(data(), seed=3))
    try:
        for client, name in enumerate(("north", "south")):
            network.enrol(name)
            network.give(name, data(), client)
        network.work("north")
        fitting, models = start_fit(network)
        wait_for_a_reply(network)
        last = back_up(home, None, archives)

        stop(network)
        database = new_database(postgres)
        shutil.rmtree(home)
        restore(Path(last.file), home, database)
        assert not (home / "coordinator.sqlite").exists()
        lines = check_log(home)
        go_on(network, database)
        network.work("south")
        while fitting.is_alive():  # one moment each, however much goes on
            last = back_up(home, database, archives)
        assert models == [expected]
        assert check_log(home) > lines

        last = back_up(home, database, archives)
        network.close()
        for number, archive in enumerate(archives.iterdir()):
            restore(archive, tmp_path / f"restored-{number}")
        shutil.rmtree(home)
        restore(Path(last.file), home)
        go_on(network)
        again, models = start_fit(network)
        again.join(300)
        assert models == [expected], "from the stored replies alone: there is no agent"
    finally:
        network.close()


def start_fit(network: Network) -> tuple[threading.Thread, list[bytes]]:
    models: list[bytes] = []
    federation = network.connect("long", seed=3)
    fitting = threading.Thread(target=lambda: models.append(fitted(federation)), daemon=True)
    fitting.start()
    return fitting, models


def wait_for_a_reply(network: Network) -> None:
    """Until the first client has answered the first ask; the other one is not there."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            if network.replies("long", 0):
                return
        except CoordinatorError:
            pass  # not asked yet
        time.sleep(0.05)
    raise TimeoutError("nobody answered")


def stop(network: Network) -> None:
    assert network.coordinator is not None
    kill(network.coordinator)


def go_on(network: Network, *database: str) -> None:
    network.coordinator = Program(SERVE, *network.place, *database)
    network.wait()


# --- what a backup holds, and what it refuses -----------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A coordinator with a job and a blob, which does not run."""
    folder = tmp_path / "home"
    app = coordinator_app(folder)
    coordinator = app.state.coordinator
    with coordinator.store as store:
        store.add_federation("cardio")
        add(store, coordinator.blobs, "first")
        identity = Identity.load(folder / "identity")
        sign(store, AuditLog(folder / "audit.log", identity))
    return folder


def add(store: Store, blobs: Blobs, job: str) -> None:
    from solera.serve.wire import NewJob

    spec = blobs.put(job.encode())
    store.add_job("cardio", NewJob(job, "driven", spec, 0, ""), time.time())


def sign(store: Store, audit: AuditLog) -> None:
    """What the supervisor does: copy events into the log, and forget those of every day."""
    store.log("asked", time.time(), federation="cardio")
    events = store.events()
    head = audit.extend([(e.event, {"event": e.id}) for e in events])
    store.forget_routine(events[-1].id, head)


def test_events_after_a_restore_have_numbers_that_none_had(home, tmp_path, postgres):
    with Store(database_of(home, None)) as store:
        used = store.log("asked", time.time())
        audit = AuditLog(home / "audit.log", Identity.load(home / "identity"))
        store.forget_routine(used, audit.extend([("asked", {"event": used})]))
    last = back_up(home, None, tmp_path / "archives")
    database = new_database(postgres)
    for number, url in enumerate((None, database)):
        folder = tmp_path / f"again-{number}"
        restore(Path(last.file), folder, url)
        with Store(database_of(folder, url)) as store:
            assert store.log("asked", time.time()) > used


def test_a_backup_is_for_its_owner_alone_and_its_age_is_known(home, tmp_path):
    assert last_backup(home) is None
    last = back_up(home, None, tmp_path / "archives")
    assert last_backup(home) == last
    assert abs(time.time() - last.time) < 3600
    assert Path(last.file).stat().st_mode & 0o077 == 0
    assert [p.name for p in (tmp_path / "archives").iterdir()] == [Path(last.file).name]
    assert not list(home.glob(".backup-*"))
    restored = tmp_path / "restored"
    restore(Path(last.file), restored)
    assert (restored / "driver.token").read_bytes() == (home / "driver.token").read_bytes()
    for path in restored.rglob("*"):
        if path.parent.name in ("identity", "restored"):
            assert path.stat().st_mode & 0o077 == 0, path


def test_people_sign_in_again_after_a_restore(home, tmp_path):
    from solera.serve.coordinator.store.tables import AccountRow, SessionRow

    with Store(database_of(home, None)) as store:
        store.add_account(AccountRow("ada", "hash", "viewer", None, 0.0), "test")
        store.open_session(SessionRow(b"cookie", "ada", "csrf", time.time() + 1000), time.time())
    restore(Path(back_up(home, None, tmp_path / "archives").file), tmp_path / "restored")
    with Store(database_of(tmp_path / "restored", None)) as store:
        assert store.account("ada") is not None
        assert store.session(b"cookie", time.time()) is None


def test_a_blob_that_is_collected_meanwhile_means_another_snapshot(home, tmp_path, monkeypatch):
    hold, missing = backups._hold_blobs, []

    def collected(blobs, digests, folder):
        if not missing:
            missing.extend(digests)
            raise backups._Moved
        hold(blobs, digests, folder)

    monkeypatch.setattr(backups, "_hold_blobs", collected)
    restore(Path(back_up(home, None, tmp_path / "archives").file), tmp_path / "restored")
    assert missing
    assert all(digest in Blobs(tmp_path / "restored" / "blobs") for digest in missing)


def test_a_blob_that_is_not_there_is_no_backup(home, tmp_path):
    shutil.rmtree(home / "blobs")
    with pytest.raises(UsageError, match="try again"):
        back_up(home, None, tmp_path / "archives")
    assert not list((tmp_path / "archives").iterdir())


def test_a_log_that_was_cut_is_no_backup(home, tmp_path):
    (home / "audit.log").write_bytes(b"")
    with pytest.raises(AuditDamaged):
        back_up(home, None, tmp_path / "archives")


@pytest.mark.parametrize("what", ["database.sqlite", "audit.log", "driver.token", "blobs", "end"])
def test_a_damaged_backup_leaves_nothing(home, tmp_path, what):
    archive = Path(back_up(home, None, tmp_path / "archives").file)
    folder = tmp_path / "unpacked"
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    damaged = tmp_path / "damaged.tar"
    if what == "end":
        damaged.write_bytes(archive.read_bytes()[:4000])
    else:
        path = next(folder.glob("blobs/*/*")) if what == "blobs" else folder / what
        changed = bytearray(path.read_bytes())
        changed[len(changed) // 2] ^= 1
        path.write_bytes(changed)
        with tarfile.open(damaged, "w") as packed:
            packed.add(folder, "")
    with pytest.raises(Damaged):
        restore(damaged, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    assert not list(tmp_path.glob(".restored*"))


def test_a_log_and_a_database_that_do_not_fit_are_refused(home, tmp_path):
    """Both whole, each from another moment: the database remembers more than the log says."""
    early = Path(back_up(home, None, tmp_path / "archives").file)
    with Store(database_of(home, None)) as store:
        sign(store, AuditLog(home / "audit.log", Identity.load(home / "identity")))
    late = Path(back_up(home, None, tmp_path / "archives").file)
    folder = tmp_path / "mixed"
    for archive, names in ((late, None), (early, ("audit.log", "audit.log.head"))):
        with tarfile.open(archive) as packed:
            chosen = [m for m in packed if names is None or m.name in names]
            packed.extractall(folder, chosen, filter="data")
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    for name in manifest["files"]:
        manifest["files"][name] = backups._digest(folder / name)
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    with tarfile.open(tmp_path / "mixed.tar", "w") as packed:
        packed.add(folder, "")
    with pytest.raises(Damaged, match="signed log"):
        restore(tmp_path / "mixed.tar", tmp_path / "restored")


def test_nothing_is_restored_over_something(home, tmp_path, postgres):
    archive = Path(back_up(home, None, tmp_path / "archives").file)
    with pytest.raises(UsageError, match="not empty"):
        restore(archive, home)
    database = new_database(postgres)
    Store(database).close()
    with pytest.raises(UsageError, match="not empty"):
        restore(archive, tmp_path / "other", database)
    assert not (tmp_path / "other").exists()
