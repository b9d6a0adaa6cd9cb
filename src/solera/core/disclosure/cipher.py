"""Releases that leave encrypted: judged in the clear, before they are sealed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from solera.core.clients import Client
from solera.core.payload import encode
from solera.core.release import Leaving, Release


class Cipher(Release):
    """Entries of another release, some of which leave encrypted where the ask wants it.

    The plaintext is computed again and judged by the inner release; if anything was withheld, it is
    sealed anew. Where the owner's policy says ``encrypted`` for the inner kind, an ask that
    does not want encryption is refused.

    Parameters
    ----------
    inner: how the plaintext is judged.
    sealed: (ask) → whether the reply is encrypted.
    plain: (client, ask) → the reply in the clear.
    seal: (ask, plain reply) → the reply as it leaves.
    """

    kind = "cipher"
    says = "encrypted numbers"

    def __init__(
        self,
        inner: Release,
        *,
        sealed: Callable[[Any], bool],
        plain: Callable[[Client, Any], Any],
        seal: Callable[[Any, Any], Any],
    ) -> None:
        super().__init__(*inner.entries)
        self.inner = inner
        self.sealed = sealed
        self.plain = plain
        self.seal = seal

    def judge(self, leaving: Leaving) -> Any:
        limits = leaving.limits
        if self.inner.kind not in limits.allows:
            raise leaving.refuse(f"releases {self.inner.says}, which is not allowed")
        if not self.sealed(leaving.ask):
            if self.inner.kind in limits.encrypted:
                raise leaving.refuse(f"{self.inner.says} leave encrypted only")
            return self.inner.judge(leaving)
        plain = self.plain(leaving.client, leaving.ask)
        before = encode(plain)
        inside = replace(leaving, reply=plain)
        judged = self.inner.judge(inside)
        return leaving.reply if encode(judged) == before else self.seal(leaving.ask, judged)


class Decrypted(Release):
    """Numbers that the client decrypts for the driver, where its policy trusts the driver.

    Nobody sees of a ciphertext what is inside: it may be the moments of a single client.
    """

    kind = "cipher"
    says = "what the owner's key opens"
    tells_rows = True

    def judge(self, leaving: Leaving) -> Any:
        if not leaving.limits.trusted:
            raise leaving.refuse(
                "opens any ciphertext of the key, which needs the policy 'trusted'"
            )
        return leaving.reply
