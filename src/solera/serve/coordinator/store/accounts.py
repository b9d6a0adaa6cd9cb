"""People and programs: accounts, who is signed in, and tokens; every act is noted."""

from __future__ import annotations

from msgspec.structs import asdict
from sqlalchemy import delete, select, update

from solera.serve.coordinator.news import TOKENS
from solera.serve.coordinator.store.base import Base, Conflict, NotFound, changed, first_row, note
from solera.serve.coordinator.store.tables import (
    AccountRow,
    SessionRow,
    TokenRow,
    accounts,
    sessions,
    tokens,
)


class Accounts(Base):
    """Accounts, sessions and tokens; secrets are stored as hashes."""

    def add_account(self, account: AccountRow, actor: str) -> None:
        """Let a person in."""
        with self._write() as connection:
            if not self._add(connection, accounts, **asdict(account)):
                raise Conflict(f"there is an account {account.name!r}")
            facts = {"actor": actor, "account": account.name, "role": account.role}
            note(connection, "account added", account.created, facts=facts,
                 federation=account.federation or "")  # fmt: skip

    def remove_account(self, name: str, actor: str, now: float) -> None:
        """Let a person in no more; whoever is signed in with it is signed out."""
        with self._write() as connection:
            connection.execute(delete(sessions).filter_by(account=name))
            if not connection.execute(delete(accounts).filter_by(name=name)).rowcount:
                raise NotFound(f"no account {name!r}")
            note(connection, "account removed", now, facts={"actor": actor, "account": name})

    def set_password(self, name: str, password: str, actor: str, now: float) -> None:
        """Another password; whoever is signed in with the old one is signed out."""
        with self._write() as connection:
            changed = update(accounts).filter_by(name=name).values(password=password)
            if not connection.execute(changed).rowcount:
                raise NotFound(f"no account {name!r}")
            connection.execute(delete(sessions).filter_by(account=name))
            note(connection, "password changed", now, facts={"actor": actor, "account": name})

    def account(self, name: str) -> AccountRow | None:
        with self._read() as connection:
            return first_row(connection, AccountRow, select(accounts).filter_by(name=name))

    def accounts(self) -> list[AccountRow]:
        """All accounts, by name."""
        return self._rows(AccountRow, select(accounts).order_by(accounts.c.name))

    # --- sessions ---

    def open_session(self, session: SessionRow, now: float) -> None:
        """A person signs in."""
        with self._write() as connection:
            connection.execute(delete(sessions).where(sessions.c.expires < now))
            self._add(connection, sessions, **asdict(session))
            note(connection, "signed in", now, facts={"actor": session.account})

    def session(self, token_hash: bytes, now: float) -> tuple[AccountRow, SessionRow] | None:
        """Who is signed in with this cookie."""
        with self._read() as connection:
            chosen = select(sessions).filter_by(token_hash=token_hash)
            session = first_row(connection, SessionRow, chosen.where(sessions.c.expires > now))
            if session is None:
                return None
            owner = select(accounts).filter_by(name=session.account)
            account = first_row(connection, AccountRow, owner)
            return None if account is None else (account, session)

    def close_session(self, token_hash: bytes) -> None:
        """A person signs out."""
        with self._write() as connection:
            connection.execute(delete(sessions).filter_by(token_hash=token_hash))

    # --- tokens ---

    def add_token(self, token: TokenRow, actor: str) -> None:
        """Let a program in."""
        with self._write() as connection:
            if not self._add(connection, tokens, **asdict(token)):
                raise Conflict(f"there is a token {token.name!r}", hint="revoke it first")
            facts = {"actor": actor, "token": token.name, "role": token.role}
            note(connection, "token made", token.created, facts=facts,
                 federation=token.federation or "")  # fmt: skip
            changed(connection, TOKENS)

    def revoke_token(self, name: str, actor: str, now: float) -> None:
        """Let a program in no more."""
        with self._write() as connection:
            if not connection.execute(delete(tokens).filter_by(name=name)).rowcount:
                raise NotFound(f"no token {name!r}")
            note(connection, "token revoked", now, facts={"actor": actor, "token": name})
            changed(connection, TOKENS)

    def tokens(self) -> list[TokenRow]:
        """All tokens, by name."""
        return self._rows(TokenRow, select(tokens).order_by(tokens.c.name))
