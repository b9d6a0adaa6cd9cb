"""Who looks at a page: passwords, cookies, roles, and what proves that a form is ours.

Passwords are hashed with argon2id. A cookie holds a random token, of which the database knows the
hash alone; forms show a second one that other sites cannot know. Who fails to sign in waits longer
each time.
"""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass
from functools import cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from solera.core.errors import UsageError
from solera.serve.coordinator.store.store import Store
from solera.serve.coordinator.store.tables import AccountRow, Role, SessionRow
from solera.serve.identity import new_token, token_hash

COOKIE: Final = "solera_session"
SECONDS: Final = 12 * 3600.0
"""How long somebody stays signed in."""
LEAST_PASSWORD: Final = 10
_FREE_TRIES: Final = 5
_LONGEST_PAUSE: Final = 300.0
_MOST_NAMES: Final = 10_000


@dataclass(frozen=True)
class Visitor:
    """Somebody who is signed in."""

    name: str
    role: Role
    federation: str | None
    csrf: str

    @property
    def is_administrator(self) -> bool:
        return self.role == "administrator"

    @property
    def may_start(self) -> bool:
        """Whether jobs may be started and cancelled."""
        return self.role in ("researcher", "administrator")

    def sees(self, federation: str) -> bool:
        """Whether a federation is any business of theirs."""
        return self.federation in (None, federation)


@cache
def _hasher() -> PasswordHasher:
    return PasswordHasher()


@cache
def _nobody() -> str:
    """A hash for names that have no account, so that trying them takes as long."""
    return _hasher().hash(secrets.token_urlsafe())


def new_account(name: str, password: str, role: Role, federation: str | None) -> AccountRow:
    """An account, its password hashed."""
    if not name.strip() or len(name) > 80:
        raise UsageError("the name of an account has 1 to 80 characters")
    return AccountRow(name, hashed(password), role, federation or None, time.time())


def hashed(password: str) -> str:
    """What the database keeps of a password."""
    if len(password) < LEAST_PASSWORD:
        raise UsageError(f"a password has at least {LEAST_PASSWORD} characters")
    return _hasher().hash(password)


class SignIns:
    """Signs people in, more slowly the more often it fails."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failed: dict[str, tuple[int, float]] = {}

    def pause(self, name: str) -> float:
        """How many seconds must pass before this name is tried again."""
        failures, last = self._failed.get(name, (0, 0.0))
        if failures < _FREE_TRIES:
            return 0.0
        wait = min(2.0 ** (failures - _FREE_TRIES), _LONGEST_PAUSE)
        return max(0.0, last + wait - time.monotonic())

    def sign_in(self, name: str, password: str) -> str | None:
        """The cookie of a new session, or None."""
        account = self._store.account(name)
        kept = _nobody() if account is None else account.password
        if not _matches(kept, password) or account is None:
            if len(self._failed) >= _MOST_NAMES:
                self._failed.clear()
            failures = self._failed.get(name, (0, 0.0))[0] + 1
            self._failed[name] = failures, time.monotonic()
            return None
        self._failed.pop(name, None)
        cookie, now = new_token(), time.time()
        session = SessionRow(token_hash(cookie), account.name, new_token(), now + SECONDS)
        self._store.open_session(session, now)
        return cookie

    def visitor(self, cookie: str | None) -> Visitor | None:
        """Whose cookie this is."""
        found = None if not cookie else self._store.session(token_hash(cookie), time.time())
        if found is None:
            return None
        account, session = found
        return Visitor(account.name, account.role, account.federation, session.csrf)


def is_own_form(visitor: Visitor, shown: str) -> bool:
    """Whether a form was made by our own page for this visitor."""
    return hmac.compare_digest(visitor.csrf.encode(), shown.encode())


def _matches(kept: str, password: str) -> bool:
    try:
        return _hasher().verify(kept, password[:1000])
    except (VerificationError, InvalidHashError):
        return False
