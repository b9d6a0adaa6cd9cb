"""FLEXible: its pool of actors, with the usual PyTorch training at the clients."""

from __future__ import annotations

import copy
import time

import numpy as np
import torch
import workload
from flex.data import Dataset, FedDataset
from flex.model import FlexModel
from flex.pool import (
    FlexPool,
    aggregate_weights,
    collect_clients_weights,
    deploy_server_model,
    init_server_model,
    set_aggregated_weights,
)
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
work = workload.read()


@init_server_model
def build():
    model = FlexModel()
    model["model"] = workload.torch_net(work)
    return model


@deploy_server_model
def deploy(server_model):
    model = FlexModel()
    model["model"] = copy.deepcopy(server_model["model"])
    return model


def train(client_model, client_data):
    net = client_model["model"]
    X, y = client_data.to_numpy()
    rows = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    optimiser = torch.optim.SGD(net.parameters(), lr=work.lr)
    for x, target in DataLoader(rows, batch_size=work.batch, shuffle=True):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x), target).backward()
        optimiser.step()


@collect_clients_weights
def collect(client_model):
    return [p.detach().numpy() for p in client_model["model"].parameters()]


@aggregate_weights
def mean(weights):
    return [np.mean(layers, axis=0) for layers in zip(*weights, strict=True)]


@set_aggregated_weights
def set_weights(server_model, weights):
    with torch.no_grad():
        for p, w in zip(server_model["model"].parameters(), weights, strict=True):
            p.copy_(torch.from_numpy(w))


data = FedDataset({k: Dataset.from_array(*work.client(k)) for k in range(work.clients)})
pool = FlexPool.client_server_pool(data, build)


def round_(number):
    wanted = set(work.chosen(number))
    clients = pool.clients.select(lambda actor, _: actor in wanted)
    pool.servers.map(deploy, clients)
    clients.map(train)
    pool.aggregators.map(collect, clients)
    pool.aggregators.map(mean)
    pool.aggregators.map(set_weights, pool.servers)


round_(0)
began = workload.ready()
for number in range(work.rounds):
    round_(number)
seconds = time.perf_counter() - began
net = pool.servers._models[next(iter(pool.servers._actors))]["model"]
workload.answer(seconds, workload.torch_accuracy(net, work))
