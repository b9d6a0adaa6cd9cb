"""pfl: its simulated backend with a PyTorch model."""

from __future__ import annotations

import time

import torch
import workload
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import get_default_device
from pfl.model.pytorch import PyTorchModel

torch.set_num_threads(1)
torch.manual_seed(0)
work = workload.read()
torch.backends.cuda.matmul.allow_tf32 = work.precision == "tf32"
torch.backends.cudnn.allow_tf32 = work.precision == "tf32"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = workload.torch_net(work)

    def forward(self, x):
        return self.net(x)

    def loss(self, x, y, eval=False):
        self.train(not eval)
        return torch.nn.functional.cross_entropy(self.net(x), y.long())

    def metrics(self, x, y):
        return {}


X, y = (torch.from_numpy(part).to(get_default_device()) for part in (work.X, work.y))


def user(k):
    part = slice(k * work.rows, (k + 1) * work.rows)
    return Dataset([X[part], y[part]], user_id=str(k))


class Clock(TrainingProcessCallback):
    """Times all iterations after the first."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if central_iteration == FIRST:
            self.began = workload.ready()
        self.ended = time.perf_counter()
        return False, type(aggregate_metrics)()


FIRST = 1  # iteration 0 would evaluate every user
net = Net()
model = PyTorchModel(
    net,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
)
names = [str(k) for k in range(work.clients)]
data = FederatedDataset(lambda name: user(int(name)), get_user_sampler("random", names))
clock = Clock()
algorithm = FederatedAveraging()
algorithm._current_central_iteration = FIRST
algorithm.run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=FIRST + work.rounds + 1,
        evaluation_frequency=10**6,
        train_cohort_size=work.per_round,
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=data, val_data=data),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=None),
    callbacks=[clock],
)
workload.answer(clock.ended - clock.began, workload.torch_accuracy(net, work))
