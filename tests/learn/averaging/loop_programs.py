"""Programs as people write them in PyTorch: model, loop, and the data sets that they read."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset


def steps(model, loader, loss_of, lr=0.01):
    """Adam over the batches of a loader; the mean loss."""
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    total, rows = 0.0, 0
    for batch in loader:
        optimiser.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimiser.step()
        total, rows = total + loss.item(), rows + 1
    return {"loss": total / rows}


# --- a convolutional network on images, C × H × W ---


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 4 * 4, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc(torch.flatten(x, 1))


def images(n=90):
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    X = torch.randn(n, 3, 8, 8, generator=draw)
    X[torch.arange(n), y] += 1.0
    return TensorDataset(X, y)


def train_cnn(model, loader, context):
    for X, _ in loader:
        assert X.shape[1:] == (3, 8, 8)
    return steps(model, loader, lambda m, b: F.cross_entropy(m(b[0]), b[1]))


# --- a generator against a discriminator, each with an optimiser of its own ---


def gan():
    return {
        "generator": nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)),
        "discriminator": nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)),
    }


def points(n=60):
    return TensorDataset(torch.randn(n, 2, generator=torch.Generator().manual_seed(1)) + 3)


def train_gan(model, loader, context):
    make, judge = model["generator"], model["discriminator"]
    of_make, of_judge = (torch.optim.Adam(part.parameters(), lr=0.01) for part in (make, judge))
    for (real,) in loader:
        fake = make(torch.randn(len(real), 2))
        true, false = judge(real), judge(fake.detach())
        of_judge.zero_grad()
        loss = F.softplus(-true).mean() + F.softplus(false).mean()
        loss.backward()
        of_judge.step()
        of_make.zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        of_make.step()
    return {"judge": loss}


# --- segmentation: a mask for every image ---


class Pictures(Dataset):
    """Images and masks, whose sizes agree; the whole of one is read each time."""

    def __init__(self, n=24):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        image = torch.randn(1, 8, 8, generator=draw)
        return image, (image[0] > 0).long()


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.out = nn.Conv2d(5, 2, 1)

    def forward(self, x):
        return self.out(torch.cat([x, self.up(F.relu(self.down(x)))], 1))


def train_unet(model, loader, context):
    return steps(model, loader, lambda m, b: F.cross_entropy(m(b[0]), b[1]))


# --- detection: lists of boxes, as many as a picture has ---


class Boxes(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        boxes = torch.rand(1 + i % 3, 4, generator=torch.Generator().manual_seed(i))
        return torch.full((3, 8, 8), float(i)), {"boxes": boxes, "labels": torch.ones(len(boxes))}


def as_lists(samples):
    return tuple(zip(*samples, strict=True))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 4)

    def forward(self, images):
        return [self.head(self.body(image[None]).mean((2, 3)))[0] for image in images]


def train_detector(model, loader, context):
    def loss(m, batch):
        found = m(batch[0])
        pairs = zip(found, batch[1], strict=True)
        return sum(F.l1_loss(box, target["boxes"].mean(0)) for box, target in pairs)

    return steps(model, loader, loss)


def name_boxes(model, batch, context):
    return [box.tolist() for box in model(batch[0])]


# --- sequences of unlike lengths ---


class Ragged(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, i):
        return torch.arange(1 + i % 5) % 7, torch.tensor(i % 2)


def padded(samples):
    rows, target = zip(*samples, strict=True)
    lengths = torch.tensor([len(row) for row in rows])
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths, torch.stack(target)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.out = nn.Linear(6, 2)

    def forward(self, rows, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(rows), lengths, batch_first=True, enforce_sorted=False
        )
        return self.out(self.lstm(packed)[1][0][-1])


def train_reader(model, loader, context):
    return steps(model, loader, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))


def read(model, batch, context):
    return model(batch[0], batch[1])


# --- contrastive learning without a target, and two tasks at once ---


def train_contrastive(model, loader, context):
    def loss(m, batch):
        a, b = (F.normalize(m(batch[0] + 0.1 * torch.randn_like(batch[0]))) for _ in range(2))
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

    return steps(model, loader, loss)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 6)
        self.kind = nn.Linear(6, 3)
        self.size = nn.Linear(6, 1)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return self.kind(x), self.size(x)


def two_targets(n=45):
    X = torch.randn(n, 2, generator=torch.Generator().manual_seed(2))
    return TensorDataset(X, torch.arange(n) % 3, X.sum(1, keepdim=True))


def train_two(model, loader, context):
    def loss(m, batch):
        kind, size = m(batch[0])
        return F.cross_entropy(kind, batch[1]) + F.mse_loss(size, batch[2])

    return steps(model, loader, loss)
