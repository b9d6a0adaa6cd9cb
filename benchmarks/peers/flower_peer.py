"""Flower: its simulation on Ray, with the usual PyTorch training at the clients."""

from __future__ import annotations

import os
import time

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import torch
import workload
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

torch.manual_seed(0)
work = workload.read()
first = workload.torch_net(work)
marks: list[float] = []
last: list = []


def values(net):
    return [p.detach().numpy() for p in net.parameters()]


def put(net, arrays):
    with torch.no_grad():
        for p, w in zip(net.parameters(), arrays, strict=True):
            p.copy_(torch.from_numpy(w.copy()))


class Client(NumPyClient):
    def __init__(self, k):
        self.k = k

    def fit(self, parameters, config):
        torch.set_num_threads(1)
        net = workload.torch_net(work)
        put(net, parameters)
        X, y = (torch.from_numpy(part) for part in work.client(self.k))
        optimiser = torch.optim.SGD(net.parameters(), lr=work.lr)
        order = torch.randperm(len(X))
        for start in range(0, len(X), work.batch):
            take = order[start : start + work.batch]
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(X[take]), y[take]).backward()
            optimiser.step()
        return values(net), len(X), {}


class Timed(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        mean = super().aggregate_fit(server_round, results, failures)
        marks.append(time.perf_counter())
        last[:] = parameters_to_ndarrays(mean[0])
        return mean


def client_fn(context):
    return Client(int(context.node_config["partition-id"])).to_client()


def server_fn(context):
    strategy = Timed(
        fraction_fit=work.per_round / work.clients,
        fraction_evaluate=0.0,
        min_available_clients=work.clients,
        initial_parameters=ndarrays_to_parameters(values(first)),
    )
    config = ServerConfig(num_rounds=work.rounds + 1)
    return ServerAppComponents(strategy=strategy, config=config)


run_simulation(
    ServerApp(server_fn=server_fn),
    ClientApp(client_fn=client_fn),
    num_supernodes=work.clients,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)
workload._ready = marks[0]
put(first, last)
workload.answer(marks[-1] - marks[0], workload.torch_accuracy(first, work))
