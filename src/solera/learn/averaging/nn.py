"""``so.nn``: models for averaging learners by short names, and schedules of their learning rate."""

from __future__ import annotations

from solera.learn.averaging import models
from solera.learn.averaging.lora import list_base, tokens
from solera.learn.averaging.models import register, register_loss, text_head
from solera.learn.averaging.schedules import CosineDecay, StepDecay

linear = models.LinearModel
mlp = models.MLP
simple_cnn = models.SimpleCNN
complex_cnn = models.ComplexCNN
conv_net = models.ConvNet
lstm = models.LSTM

__all__ = [
    "CosineDecay",
    "StepDecay",
    "complex_cnn",
    "conv_net",
    "linear",
    "list_base",
    "lstm",
    "mlp",
    "register",
    "register_loss",
    "simple_cnn",
    "text_head",
    "tokens",
]
