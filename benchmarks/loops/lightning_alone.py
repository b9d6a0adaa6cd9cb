"""A LightningModule and its trainer."""

import lightning
import torch
from torch import nn
from torch.nn import functional as F

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


model = Digits()
loader = torch.utils.data.DataLoader(trainset, batch_size=16, shuffle=True)
trainer = lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False)
trainer.fit(model, loader)
images, labels = trainset.tensors
print("accuracy", (model(images).argmax(1) == labels).float().mean().item())
