"""Pictures of digits as a data set of PyTorch."""

import torch
from torch.utils.data import TensorDataset

import solera as so

X, y, _, _ = so.datasets.digits()
trainset = TensorDataset(torch.tensor(X.reshape(-1, 1, 8, 8) / 16).float(), torch.tensor(y))
