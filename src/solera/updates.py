"""``so.updates``: what happens to an update between a client's training and the mean."""

from solera.learn.averaging.updates import Clip, Noise, Quantise, RandomMask, TopK, UpdateStep

__all__ = ["Clip", "Noise", "Quantise", "RandomMask", "TopK", "UpdateStep"]
