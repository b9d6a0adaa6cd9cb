"""Our learners over a SuperLink of Flower, beside Flower's own FedAvg with the same model and rows.

Softmax regression on digits, dealt to SuperNodes on loopback; one full batch at each per round.
Both are run by ``flwr run`` over the same SuperLink, one after the other; seconds are taken in the
ServerApp, without start-up. Flower's ClientApp needs NumPy only; ours reads a policy, asks for the
policy's leave, signs and logs. FedHEONN needs one round for a model.

    python benchmarks/flower.py [--nodes 3] [--rounds 3] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from flower_network import FlowerNetwork, find_flower

import solera as so
from sizes import sized
from solera.cli.flower import PROJECT

OURS = """
import json
import time
from pathlib import Path

import numpy as np
import solera as so
from solera.serve.flower import client_app, server_app


def main(federation, config):
    rounds = config["rounds"]
    test = np.load(config["test"])
    learners = {
        "FedAvg": so.FedAvg(so.nn.linear(64, 10), rounds=rounds, lr=0.01, batch_size=None),
        "FedHEONN": so.FedHEONN(lam=0.01),
    }
    told = {}
    for name, learner in learners.items():
        began = time.perf_counter()
        learner.fit(federation)
        seconds = time.perf_counter() - began
        asks = len(federation.meter.records) - sum(one[1] for one in told.values())
        told[name] = [seconds, asks, learner.score(test["X"], test["y"])]
    Path(config["out"]).write_text(json.dumps(told))


server = server_app(main)
client = client_app()
"""
THEIRS = """
import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    config = context.run_config
    test = np.load(config["test"])
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=config["clients"])
    first = ArrayRecord([np.zeros((64, 10)), np.zeros(10)])
    while len(list(grid.get_node_ids())) < config["clients"]:
        time.sleep(0.2)
    began = time.perf_counter()
    result = strategy.start(grid, first, num_rounds=config["rounds"])
    seconds = time.perf_counter() - began
    W, b = result.arrays.to_numpy_ndarrays()
    score = float(((test["X"] @ W + b).argmax(axis=1) == test["y"]).mean())
    Path(config["out"]).write_text(json.dumps({"FedAvg": [seconds, config["rounds"], score]}))


@client.train()
def train(message, context):
    rows = np.loadtxt(context.node_config["data"], delimiter=",", skiprows=1)
    X, y = rows[:, :-1], rows[:, -1].astype(int)
    W, b = message.content["arrays"].to_numpy_ndarrays()
    scores = X @ W + b
    P = np.exp(scores - scores.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    P[np.arange(len(y)), y] -= 1
    P /= len(y)
    W, b = W - 0.01 * X.T @ P, b - 0.01 * P.sum(axis=0)
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord([W, b]), "metrics": metrics})
    return Message(content=content, reply_to=message)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=sized(3, tiny=2))
    parser.add_argument("--rounds", type=int, default=sized(3, tiny=1))
    options = parser.parse_args()
    binaries = find_flower()
    if binaries is None:
        print("Flower is not installed: make bench-peers, or SOLERA_PEERS names its folder")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nodes = _owners(folder, options.nodes)
        with FlowerNetwork(binaries, folder) as network:
            network.start(nodes)
            found = {}
            for whose, module in (("Solera", OURS), ("Flower", THEIRS)):
                app, out = folder / whose.lower(), folder / f"{whose}.json"
                app.mkdir()
                (app / "pyproject.toml").write_text(_project(app.name))
                (app / "solera_app.py").write_text(module)
                config = f'out="{out}" clients={options.nodes} rounds={options.rounds} '
                network.run(app, out, 1800, config + f'test="{folder / "test.npz"}"')
                found[whose] = json.loads(out.read_text())
    print("whose    learner    seconds  asks  seconds an ask  accuracy")
    for whose, learners in found.items():
        for learner, (seconds, asks, score) in learners.items():
            each = seconds / asks
            print(f"{whose:8} {learner:10} {seconds:7.1f} {asks:5} {each:15.2f} {score:9.4f}")
    ours, theirs = (found[whose]["FedAvg"] for whose in ("Solera", "Flower"))
    print(
        f"an ask of ours / a round of Flower's: {ours[0] / ours[1] / (theirs[0] / theirs[1]):.2f}"
    )


def _project(name: str) -> str:
    return PROJECT.format(name=name, publisher="bench") + 'rounds = 1\ntest = ""\n'


def _owners(folder: Path, nodes: int) -> list[str]:
    """Rows and a policy for every owner; the node configurations."""
    X, y, X_test, y_test = so.datasets.digits()
    np.savez(folder / "test.npz", X=X_test, y=y_test)
    data = so.simulate(X, y, clients=nodes, seed=0).engine.source
    found = []
    for client in range(nodes):
        rows = data.segments(np.array([client]))[0]
        table, path = np.column_stack([rows.X, rows.y]), folder / f"{client}.csv"
        names = ",".join([*(f"p{column}" for column in range(64)), "digit"])
        form = ["%.17g"] * 64 + ["%d"]  # numbers with a point would be a target to regress on
        np.savetxt(path, table, fmt=form, delimiter=",", header=names, comments="")
        (folder / f"{client}.toml").write_text('policy = "trusted"\n')
        own = {"client": client, "data": str(path), "target": "digit"}
        own |= {"policy": str(folder / f"{client}.toml"), "folder": str(folder / f"a{client}")}
        found.append(" ".join(f"{key}={json.dumps(value)}" for key, value in own.items()))
    return found


if __name__ == "__main__":
    main()
