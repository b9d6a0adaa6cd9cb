"""Telling people at the client: that a job waits for them, what was decided, what was refused."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from typing import Any

from solera.serve.agent.policy import NotifyRules

log = logging.getLogger("solera.agent")

_SECONDS = 30.0


def notify(rules: NotifyRules, event: str, **facts: Any) -> threading.Thread | None:
    """Run the owner's command with the event as JSON on its input, and post it to the webhook.

    In a thread of its own: whom nobody can reach delays no work. A failure is logged.
    """
    if not rules.command and not rules.webhook:
        return None
    message = json.dumps({"event": event, **facts}).encode()
    thread = threading.Thread(target=_tell, args=(rules, message), name="notify", daemon=True)
    thread.start()
    return thread


def _tell(rules: NotifyRules, message: bytes) -> None:
    if rules.command:
        try:
            subprocess.run(
                rules.command,
                input=message,
                timeout=_SECONDS,
                check=True,
                stdout=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("the command of [notify] failed: %s", error)
    if rules.webhook:
        import httpx

        try:
            headers = {"Content-Type": "application/json"}
            httpx.post(
                rules.webhook, content=message, headers=headers, timeout=_SECONDS
            ).raise_for_status()
        except httpx.HTTPError as error:
            log.warning("the webhook of [notify] failed: %s", error)
