"""A no-op round of Flower: a SuperLink and SuperNodes as processes on loopback.

Run with the Python of Flower's own environment; prints the median of the rounds, in seconds, last.

    .peers/flower/bin/python benchmarks/peers/flower_round.py [nodes]
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 8
PROJECT = """
[project]
name = "noop"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "noop.server:app"
clientapp = "noop.client:app"

[tool.flwr.app.config]
"""
SERVER = """
import json
import time
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < {nodes}:
        time.sleep(0.2)
    times = []
    for _ in range({rounds}):
        began = time.perf_counter()
        nodes = list(grid.get_node_ids())
        asked = [
            Message(content=RecordDict(), message_type="query", dst_node_id=node) for node in nodes
        ]
        replies = list(grid.send_and_receive(asked))
        assert len(replies) == {nodes}
        times.append(time.perf_counter() - began)
    with open({out!r}, "w") as file:
        json.dump(times, file)
"""
CLIENT = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message, context):
    return Message(content=RecordDict(), reply_to=message)
"""


def free_ports(number: int) -> list[int]:
    probes = [socket.socket() for _ in range(number)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def main(nodes: int) -> None:
    binaries = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "times.json"
        app = folder / "app"
        (app / "noop").mkdir(parents=True)
        (app / "pyproject.toml").write_text(PROJECT)
        (app / "noop" / "__init__.py").write_text("")
        (app / "noop" / "client.py").write_text(CLIENT)
        server = SERVER.format(nodes=nodes, rounds=ROUNDS, out=str(out))
        (app / "noop" / "server.py").write_text(server)
        link, *own = free_ports(1 + nodes)
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n'
            f'[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
        )
        environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{binaries}:{os.environ['PATH']}",
        }
        running = []

        def start(command: str, *arguments: str) -> None:
            with open(folder / f"{command}-{len(running)}.log", "wb") as log:
                running.append(
                    subprocess.Popen(
                        [str(binaries / command), *arguments],
                        env=environment,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )

        try:
            start(
                "flower-superlink",
                "--insecure",
                "--host", "127.0.0.1",
                "--port", str(link),
            )  # fmt: skip
            time.sleep(5)
            for port in own:
                start(
                    "flower-supernode",
                    "--insecure",
                    "--superlink", f"127.0.0.1:{link}",
                    "--host", "127.0.0.1",
                    "--port", str(port),
                )  # fmt: skip
            time.sleep(5)
            done = subprocess.run(
                [str(binaries / "flwr"), "run", str(app), "here"],
                env=environment,
                capture_output=True,
                text=True,
            )
            end = time.monotonic() + 200
            while not out.exists() and time.monotonic() < end:
                time.sleep(0.5)
            if not out.exists():
                logs = "\n".join(p.read_text()[-800:] for p in sorted(folder.glob("*.log"))[:2])
                sys.exit(f"no round finished in 200 s: {done.stdout} {done.stderr}\n{logs}")
            time.sleep(0.5)
            times = json.loads(out.read_text())
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()
    print(f"Flower, {nodes} nodes: {', '.join(f'{t:.2f}' for t in times)}")
    print(statistics.median(times))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
