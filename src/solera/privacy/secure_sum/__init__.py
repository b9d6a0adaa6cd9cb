"""Secure sums: the coordinator learns the sum of what clients send, and no single one of them.

Clients mask what they send with numbers that cancel in the sum (Bonawitz et al. 2017, *Practical
secure aggregation*; Bell et al. 2020, *Secure single-server aggregation with (poly)logarithmic
overhead*). Any third of them may drop out on the way. :mod:`.tasks` holds what clients do,
:mod:`.protocol` what the driver does, the rest what both are made of.
"""

from solera.privacy.secure_sum.protocol import SecureSum

__all__ = ["SecureSum"]
