"""Homomorphic encryption: arrays that a coordinator can add without being able to read them.

The scheme is CKKS (Cheon, Kim, Kim, Song 2017, *Homomorphic encryption for arithmetic of
approximate numbers*), computed by Microsoft SEAL. The products a coordinator can apply to a sum are
in :mod:`.products`, the storage of keys in :mod:`.keys`.

What each role learns
    *Clients* share one key pair. Whoever holds its secret key can read every ciphertext they get
    hold of: the sum they are given, and, if the coordinator passes on a single client's ciphertext
    in its place, that client. So the coordinator together with any one client can read every
    client. SEAL has no threshold keys; secure aggregation by masking does not have this weakness.
    *The coordinator* holds public keys only. It sees shapes, magnitudes, the number of addends and
    which key was used, and neither an array nor a sum.
    Decrypted numbers must not be sent back to the coordinator: their rounding errors, next to the
    ciphertext, reveal the secret key (Li, Micciancio 2021).

Encryption draws from the system's randomness, never from a seed: equal arrays give different bytes.
"""

from solera.privacy.he.ciphertexts import Encrypted, Label, add, decrypt, encrypt, magnitude_of
from solera.privacy.he.keys import PublicKey, Rotations, SecretKey, WrongKey, generate
from solera.privacy.he.ring import (
    CLIENT,
    COMPAT,
    COORDINATOR,
    SMALL,
    SMALL_CLIENT,
    Parameters,
    WeakParameters,
)

__all__ = [
    "CLIENT",
    "COMPAT",
    "COORDINATOR",
    "SMALL",
    "SMALL_CLIENT",
    "Encrypted",
    "Label",
    "Parameters",
    "PublicKey",
    "Rotations",
    "SecretKey",
    "WeakParameters",
    "WrongKey",
    "add",
    "decrypt",
    "encrypt",
    "generate",
    "magnitude_of",
]
