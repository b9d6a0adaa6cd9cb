"""Receipts for clients that left: signed by the coordinator, checked by whoever holds its key."""

from __future__ import annotations

import msgspec
from msgspec.structs import asdict, replace

from solera.serve.identity import Identity, signed_message, verify
from solera.serve.wire import Receipt


def signed(receipt: Receipt, identity: Identity) -> Receipt:
    """The receipt with the coordinator's key and signature."""
    receipt = replace(receipt, key=identity.sign_key.hex(), signature="")
    return replace(receipt, signature=identity.sign(_message(receipt)).hex())


def is_genuine(receipt: Receipt) -> bool:
    """Whether the key that it names signed it as it is."""
    try:
        key, signature = bytes.fromhex(receipt.key), bytes.fromhex(receipt.signature)
    except ValueError:
        return False
    return verify(key, _message(receipt), signature)


def _message(receipt: Receipt) -> bytes:
    fields = {name: value for name, value in asdict(receipt).items() if name != "signature"}
    return signed_message("receipt", msgspec.json.encode(fields, order="sorted"))
