"""A LightningModule and its trainer."""

import lightning
import torch
from torch import nn
from torch.nn import functional as F

import solera as so
from pictures import trainset


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


loops = so.learn.adapters.lightning(max_epochs=2, logger=False, enable_checkpointing=False)
fed = so.simulate(trainset, clients=5, seed=0)
model = so.FedTorch(Digits, **loops, rounds=5, batch_size=16).fit(fed).module()
images, labels = trainset.tensors
print("accuracy", (model(images).argmax(1) == labels).float().mean().item())
