"""Models for averaging learners by short names: ``so.nn.mlp(64, 100, 10)``."""

from __future__ import annotations

from solera.learn.averaging import models
from solera.learn.averaging.models import register, register_loss, text_head

linear = models.LinearModel
mlp = models.MLP
simple_cnn = models.SimpleCNN
complex_cnn = models.ComplexCNN
conv_net = models.ConvNet

__all__ = [
    "complex_cnn",
    "conv_net",
    "linear",
    "mlp",
    "register",
    "register_loss",
    "simple_cnn",
    "text_head",
]
