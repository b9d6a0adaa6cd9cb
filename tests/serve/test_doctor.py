"""Every fault that ``solera doctor`` names, made for real and found."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time

import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from databases import new_database  # noqa: E402
from network import Network, free_port  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.serve import findings, tls  # noqa: E402
from solera.serve.agent import doctor as at_agent  # noqa: E402
from solera.serve.coordinator import doctor as at_coordinator  # noqa: E402
from solera.serve.coordinator.backup import back_up  # noqa: E402
from solera.serve.coordinator.doctor import Place  # noqa: E402
from solera.serve.coordinator.run import database_of  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.findings import Finding  # noqa: E402

PLAIN = """
import socket, sys
listener = socket.fromfd(int(sys.argv[1]), socket.AF_INET, socket.SOCK_STREAM)
listener.accept()
connection, _ = listener.accept()
connection.recv(100)
connection.sendall(b"HTTP/1.1 400 what?\\r\\n\\r\\n")
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A coordinator that runs, and a client that has joined."""
    here = Network(tmp_path_factory.mktemp("network"))
    here.start()
    here.enrol("north")
    yield here
    here.close()


def served(network: Network) -> Place:
    certificate, key = network.certificate
    return Place(network.folder / "coordinator", "127.0.0.1", network.port, None, certificate, key)


def wrong(found: list[Finding]) -> dict[str, Finding]:
    for finding in found:
        assert finding.state == "ok" or finding.mend, finding
    return {finding.what: finding for finding in found if finding.state != "ok"}


def test_nothing_is_wrong_where_all_is_well(network):
    back_up(network.folder / "coordinator", None, network.folder / "archives")
    found = at_coordinator.examine(served(network))
    assert not wrong(found), wrong(found)
    looked = {f.what for f in found}
    assert looked >= {"folder", "disk", "database", "clock", "certificate", "port", "backup"}
    found = at_agent.examine(network.folder / "north")
    assert not wrong(found), wrong(found)
    assert {f.what for f in found} >= {"host name", "port", "authority", "clock", "membership"}


# --- at an agent ---


def test_a_host_name_that_nobody_knows(network, tmp_path):
    found = wrong(at_agent.examine(tmp_path, "https://nowhere.invalid:8443"))
    assert "nowhere.invalid" in found["host name"].says
    assert "port" not in found


def test_a_port_on_which_nobody_listens(network, tmp_path):
    found = wrong(at_agent.examine(tmp_path, f"https://127.0.0.1:{free_port()}"))
    assert "Connection refused" in found["port"].says
    assert "solera doctor" in found["port"].mend


def test_another_authority(network, tmp_path):
    other = tls.make_ca(tmp_path / "other")
    found = wrong(at_agent.examine(tmp_path, network.url, str(other)))
    assert "does not vouch" in found["authority"].says
    assert "ca.pem" in found["authority"].mend


def test_a_certificate_for_another_name(network, tmp_path):
    found = wrong(at_agent.examine(tmp_path, f"https://localhost:{network.port}", network.ca))
    assert "not for localhost" in found["host name"].says
    assert "tls init --host localhost" in found["host name"].mend


def test_a_port_that_does_not_speak_tls(network, tmp_path):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    child = subprocess.Popen(
        [sys.executable, "-c", PLAIN, str(listener.fileno())], pass_fds=[listener.fileno()]
    )
    try:
        found = wrong(at_agent.examine(tmp_path, f"https://127.0.0.1:{port}"))
        assert "TLS" in found["authority"].says
    finally:
        child.kill()
        child.wait()
        listener.close()


@pytest.mark.parametrize(("seconds", "word"), [(400.0, "ahead"), (-400.0, "behind")])
def test_clocks_that_are_apart(network, monkeypatch, seconds, word):
    real = time.time
    monkeypatch.setattr(at_agent.time, "time", lambda: real() + seconds)
    found = wrong(at_agent.examine(network.folder / "north"))
    assert word in found["clock"].says
    assert "timedatectl" in found["clock"].mend


def test_an_expired_certificate_at_both_sides(tmp_path, monkeypatch):
    here = Network(tmp_path)
    now = tls.datetime.now(tls.UTC)

    class Past(tls.datetime):
        @classmethod
        def now(cls, zone=None):
            return now - tls.timedelta(days=900)

    monkeypatch.setattr(tls, "datetime", Past)
    here.certificate[0].unlink()
    here.certificate[1].unlink()
    here.certificate = tls.issue(tmp_path / "tls", "coordinator", ["127.0.0.1"])
    monkeypatch.undo()
    here.start()
    try:
        found = wrong(at_agent.examine(tmp_path / "nobody", here.url, here.ca))
        assert "expired" in found["authority"].says
        assert "solera tls renew" in found["authority"].mend
        found = wrong(at_coordinator.examine(served(here)))
        assert "expired" in found["certificate"].says
        mend = found["certificate"].mend.split()[1:]
        assert CliRunner().invoke(app, mend).exit_code == 0, "the command that is named mends it"
        assert "certificate" not in wrong(at_coordinator.examine(served(here)))
    finally:
        here.close()


def test_a_client_that_was_revoked(network):
    network.enrol("gone")
    driver = network.driver()
    members = driver.request("GET", "/v1/federations/cardio").json()["clients"]
    (number,) = [m["id"] for m in members if m["name"] == "gone"]
    path = f"/v1/federations/cardio/clients/{number}/revoke"
    driver.request("POST", path, json={"reason": "lost laptop"})
    driver.close()
    found = wrong(at_agent.examine(network.folder / "gone"))
    assert "lost laptop" in found["membership"].says


def test_a_full_disk(network, monkeypatch):
    monkeypatch.setattr(findings, "LEAST_FREE", 1 << 62)
    assert "df -h" in wrong(at_agent.examine(network.folder / "north"))["disk"].mend
    assert "disk" in wrong(at_coordinator.examine(served(network)))


def test_keys_that_others_can_read(network, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(network.folder / "north", folder)
    folder.chmod(0o755)
    assert "chmod 700" in wrong(at_agent.examine(folder))["folder"].mend


def test_a_log_that_was_changed(network, tmp_path):
    folder = tmp_path / "copy"
    while b"north" not in (network.folder / "coordinator" / "audit.log").read_bytes():
        time.sleep(0.05)  # it is written in the background
    shutil.copytree(network.folder / "coordinator", folder)
    log = folder / "audit.log"
    log.write_bytes(log.read_bytes().replace(b"north", b"south"))
    found = wrong(at_coordinator.examine(Place(folder, port=free_port())))
    assert found["signed log"].state == "wrong"


# --- at a coordinator ---


def test_a_port_that_somebody_else_has(network, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(network.folder / "coordinator", folder)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = wrong(at_coordinator.examine(Place(folder, port=port)))
        assert "cannot listen" in found["port"].says
        assert str(port) in found["port"].mend
    found = wrong(at_coordinator.examine(Place(folder, port=free_port())))
    assert "does not run" in found["port"].says
    running = Place(network.folder / "coordinator", port=free_port())
    assert "not on port" in wrong(at_coordinator.examine(running))["port"].says


def test_a_database_that_does_not_answer(network, tmp_path):
    database = f"postgresql+psycopg://solera:secret@127.0.0.1:{free_port()}/solera"
    place = Place(network.folder / "coordinator", port=network.port, database=database)
    found = wrong(at_coordinator.examine(place))
    assert "refused" in found["database"].says
    assert "secret" not in str(found)


def test_a_database_of_another_version(network, tmp_path, postgres):
    from sqlalchemy import create_engine, text

    database = new_database(postgres)
    Store(database).close()
    place = Place(network.folder / "coordinator", database=database)
    assert "database" not in wrong(at_coordinator.upgradable(place))
    engine = create_engine(database)
    for revision, says in (("0001", "will become"), ("9999", "newer than")):
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": revision})
        assert wrong(at_coordinator.examine(place))["database"].mend == "solera upgrade --check"
        assert says in wrong(at_coordinator.upgradable(place))["database"].says
    engine.dispose()


def test_a_clock_that_is_behind_the_database(network, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(network.folder / "coordinator", folder)
    with Store(database_of(folder, None)) as store:
        store.log("asked", time.time() + 5 * 3600)
    found = wrong(at_coordinator.examine(Place(folder, port=free_port())))
    assert "5 hours behind" in found["clock"].says


def test_a_client_with_other_versions_of_tasks(network, tmp_path):
    from sqlalchemy import update

    from solera.serve.coordinator.store.tables import clients

    folder = tmp_path / "copy"
    shutil.copytree(network.folder / "coordinator", folder)
    with Store(database_of(folder, None)) as store, store._write() as connection:
        connection.execute(update(clients).values(tasks={"data.describe": 99}))
    found = wrong(at_coordinator.upgradable(Place(folder)))
    assert "data.describe" in found["clients"].says


def test_backups_that_are_old_or_were_never_made(network, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(network.folder / "coordinator", folder)
    (folder / "backup.json").unlink(missing_ok=True)
    found = wrong(at_coordinator.examine(Place(folder, port=free_port())))["backup"]
    assert found.state == "soon"
    command = [*found.mend.split()[1:-1], str(tmp_path / "archives")]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert "backup" not in wrong(at_coordinator.examine(Place(folder, port=free_port())))
    told = json.loads((folder / "backup.json").read_bytes())
    told["time"] -= 9 * 24 * 3600
    (folder / "backup.json").write_text(json.dumps(told))
    assert "9 days" in wrong(at_coordinator.examine(Place(folder, port=free_port())))["backup"].says


# --- the command ---


def test_the_command_finds_out_which_side_it_is_at(network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    agent = run.invoke(app, ["doctor", "--folder", str(network.folder / "north")])
    assert agent.exit_code == 0, agent.output
    assert "ok    membership: the coordinator knows north" in agent.output
    home = network.folder / "coordinator"
    (tmp_path / "solera.toml").write_text(
        f'[coordinator]\nfolder = "{home}"\nport = {network.port}\n'
        f'certificate = "{network.certificate[0]}"\nkey = "{network.certificate[1]}"\n'
    )
    coordinator = run.invoke(app, ["doctor", "--config", "solera.toml", "--json"])
    assert coordinator.exit_code == 0, coordinator.output
    assert {"what": "port", "state": "ok"}.items() <= next(
        f for f in json.loads(coordinator.output) if f["what"] == "port"
    ).items()
    joining = run.invoke(app, ["doctor", "--url", "https://nowhere.invalid"])
    assert joining.exit_code == 1
    assert "wrong host name: nobody knows the name nowhere.invalid" in joining.output
    assert "neither a coordinator nor a client" in run.invoke(app, ["doctor"]).stderr
    check = run.invoke(app, ["upgrade", "--check", "--config", "solera.toml"])
    assert check.exit_code == 0, check.output
    assert "process" in run.invoke(app, ["upgrade", "--config", "solera.toml"]).stderr
