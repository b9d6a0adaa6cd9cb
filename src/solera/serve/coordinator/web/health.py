"""What somebody who runs a coordinator wants to know."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass

from solera.core.meter import size
from solera.serve import tls
from solera.serve.audit import verify
from solera.serve.coordinator.metrics import Metrics
from solera.serve.coordinator.service import Coordinator
from solera.serve.web.rendering import ago, moment


@dataclass
class Health:
    """Looks at a running coordinator; the signed log is verified when somebody asks for it."""

    coordinator: Coordinator
    metrics: Metrics
    verified: str = "not since the start"

    def facts(self) -> list[tuple[str, str]]:
        """What is known without much work."""
        from solera.serve.coordinator.backup import last_backup  # which starts from this service

        coordinator = self.coordinator
        census = coordinator.store.census(time.time())
        disk = shutil.disk_usage(coordinator.blobs.folder)
        head = coordinator.store.signed_head()
        backup = last_backup(coordinator.blobs.folder.parent)
        rate, slow = self.metrics.pace()
        shown = coordinator.certificate
        return [
            ("Clients", f"{census.seen} of {census.clients} heard of in the last minute"),
            ("Jobs", ", ".join(f"{n} {state}" for state, n in census.jobs.items()) or "none"),
            ("Open asks", str(census.asks)),
            ("Requests that wait", str(coordinator.notifier.waiting)),
            ("Requests", f"{rate:.1f} a minute since the start; 95 % within {slow:g} s"),
            ("Database", coordinator.store.dialect),
            ("Disk", f"{size(disk.free)} of {size(disk.total)} free"),
            ("Certificate", f"until {moment(tls.expiry(shown))}" if shown else "none"),
            ("Signed log", coordinator.log_problem or (f"line {head[0]}" if head else "empty")),
            ("Verified", self.verified),
            ("Last backup", "never" if backup is None else ago(backup.time)),
            ("Last event", moment(coordinator.store.last_moment())),
            ("Clock", "believed" if coordinator.clock.believed() else "doubted: it jumped"),
        ]

    def verify(self) -> None:
        """Check every line of the signed log."""
        path = self.coordinator.blobs.folder.parent / "audit.log"
        identity = self.coordinator.identity
        if identity is None or not path.exists():
            self.verified = "there is no signed log"
            return
        report = verify(path, identity.sign_key)
        found = f"{report.head[0]:,} lines unbroken" if report.ok else "; ".join(report.problems)
        self.verified = f"{moment(time.time())}: {found}"
