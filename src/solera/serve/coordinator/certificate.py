"""The certificate of a running coordinator, taken up anew when its files change."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("solera.coordinator")


@dataclass
class Certificate:
    """A certificate and its key; ``context`` is the server's, once it has one.

    Connections that are open keep what they began with.
    """

    certificate: str
    key: str
    context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self._loaded = self._content()

    def reload(self) -> bool:
        """Show new connections what the files hold now; whether that is another certificate.

        A pair that does not fit, as between writing one file and the other, is left alone.
        """
        found = self._content()
        if self.context is None or found in (None, self._loaded):
            return False
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
            self.context.load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError):
            return False
        self._loaded = found
        log.info("the certificate in %s is shown from now on", self.certificate)
        return True

    def _content(self) -> tuple[bytes, bytes] | None:
        try:
            return Path(self.certificate).read_bytes(), Path(self.key).read_bytes()
        except OSError:
            return None
