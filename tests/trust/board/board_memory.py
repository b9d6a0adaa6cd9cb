"""A board and a disk in memory, for owners that are threads of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition

from solera.trust.board.run import RunEnded


@dataclass
class MemoryBoard:
    """Posts by step and owner, one for each; somebody's evidence ends the run."""

    owners: int
    patience: float = 20.0
    posts: dict[tuple[str, int], bytes] = field(default_factory=dict)
    changed: Condition = field(default_factory=Condition, repr=False)

    def connect(self, owner: int) -> MemoryConnection:
        """The board as an owner reaches it."""
        return MemoryConnection(self, owner)


@dataclass
class MemoryConnection:
    """One owner's connection."""

    board: MemoryBoard
    owner: int

    def post(self, step: str, content: bytes) -> None:
        """Post once; the same again is fine."""
        with self.board.changed:
            if self.board.posts.setdefault((step, self.owner), content) != content:
                raise RunEnded(f"a second post for {step}")
            self.board.changed.notify_all()

    def read(self, step: str, owners: Sequence[int]) -> list[bytes]:
        """Posts of these owners, waited for."""
        wanted = [(step, owner) for owner in owners]
        posts = self.board.posts

        def complete() -> bool:
            return all(post in posts for post in wanted)

        with self.board.changed:
            ready = self.board.changed.wait_for(
                lambda: complete() or self._is_ended, self.board.patience
            )
            if complete():
                return [posts[post] for post in wanted]
        raise RunEnded("another owner ended the run" if ready else "an owner is away")

    def evidence(self) -> list[bytes]:
        """What owners have published, once all have or patience is over."""
        with self.board.changed:
            self.board.changed.wait_for(
                lambda: len(self._published) == self.board.owners, self.board.patience
            )
            return [self.board.posts[post] for post in self._published]

    @property
    def _published(self) -> list[tuple[str, int]]:
        return [post for post in self.board.posts if post[0] == "evidence"]

    @property
    def _is_ended(self) -> bool:
        return bool(self._published)


@dataclass
class MemoryStore:
    """Records that live as long as the process."""

    records: dict[str, bytes] = field(default_factory=dict)
    over: bool = False

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """What is stored under this name, made the first time."""
        if self.over:
            raise RunEnded("this job is over: it starts once")
        if name not in self.records:
            self.records[name] = make()
        return self.records[name]

    def erase(self) -> None:
        """Forget all but that it is over."""
        self.records.clear()
        self.over = True
