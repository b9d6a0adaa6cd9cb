"""Owners of an epoch in one process: threads with real masks, signatures and a board in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from board_memory import MemoryBoard, MemoryStore
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from solera.core.aggregation import Aggregation
from solera.core.engine import Ask, Fit
from solera.core.federation import Federation
from solera.engines.owner import OwnerWorker
from solera.learn.closed import closed_result
from solera.trust.board.engine import BoardEngine
from solera.trust.board.keys import new_private, public_of
from solera.trust.board.result import Closed, open_result
from solera.trust.board.run import OwnerRun, RunEnded, RunStore
from solera.trust.board.sums import sums_of
from solera.trust.board.text import JobText, canonical

EPOCH = b"what all owners signed".ljust(32)
RESEARCHER = new_private()
IDENTITIES = [Ed25519PrivateKey.generate() for _ in range(10)]
EXACT = {"policy": "sums", "exact_training": True}


def keys(owners: int = 4) -> list[bytes]:
    return [identity.public_key().public_bytes_raw() for identity in IDENTITIES[:owners]]


def text_of(learner: Any, **more: Any) -> bytes:
    more = {"researcher": "R", "researcher_key": public_of(RESEARCHER), **more}
    return canonical(JobText("training", learner, **more))


def run_of(index: int, board: Any, store: RunStore, text: bytes, **more: Any) -> OwnerRun:
    given: dict[str, Any] = {"identity": IDENTITIES[index], "keys": keys(), "epoch": EPOCH}
    given |= {"index": index, "text": text, "board": board, "store": store}
    return OwnerRun(**given | more)


@dataclass
class Ended:
    """How a run ended at one owner: well, or not."""

    closed: Closed | None = None
    why: str = ""
    blamed: str = ""
    sums: int = 0


class OwnerExchange:
    """The exchange of an owner whose worker is in this process: its sums go over the board."""

    def __init__(self, run: OwnerRun, worker: OwnerWorker) -> None:
        self.run = run
        self.worker = worker

    def total(self, question: bytes, ask: Ask, aggregation: Aggregation) -> Any:
        """The partial over all owners."""
        own = self.worker.answer(question, ask, aggregation)
        sums = sums_of(question, aggregation, own)
        return self.run.drive(sums, lambda state: self.worker.restore(state, ask.fit))

    def keeps(self, fit: Fit) -> bool:
        """Whether the owner keeps anything of a fit."""
        return self.worker.keeps(fit)


@dataclass
class Job:
    """A learner over the owners of a simulated federation, as it goes over a board."""

    learner: Any
    federation: Any
    options: Callable[[], dict[str, Any]] = dict
    text: bytes = b""
    patience: float = 30.0
    kinds: dict[int, type[OwnerRun]] = field(default_factory=dict)
    stores: Callable[[int], RunStore] = lambda _: MemoryStore()
    connect: Callable[[MemoryBoard, int], Any] = MemoryBoard.connect
    workers: Callable[[int, OwnerWorker], OwnerWorker] = lambda _, worker: worker

    def __post_init__(self) -> None:
        self.closed = self.federation.closed_job(type(self.learner).__name__)
        self.text = self.text or text_of(self.learner)
        self.owners = self.closed.engine.clients

    def simulated(self) -> bytes:
        """The bytes that a simulation gives."""
        return closed_result(self.learner.clone(), self.federation, **self.options())

    def owner(self, index: int, board: MemoryBoard) -> Ended:
        """One owner from the start to the end, as its agent does it."""
        like: BoardEngine = self.closed.engine
        simulated: Any = like.exchange
        known = simulated.workers[index]
        worker = OwnerWorker(known.source, known.policy, known.secret, self.owners)
        run = run_of(
            index,
            self.connect(board, index),
            self.stores(index),
            self.text,
            keys=keys(self.owners),
        )
        if kind := self.kinds.get(index):
            run.__class__ = kind
        exchange = OwnerExchange(run, self.workers(index, worker))
        engine = BoardEngine(
            exchange,
            like.schema,
            self.owners,
            gaps=like.gaps,
            names=like.client_names,
            atoms=lambda: like.atoms,
            bases=like.bases,
        )
        configuration = self.closed.configuration
        federation = Federation(
            engine, seed=configuration.seed, names=configuration.names,
            positive=configuration.positive,
        )  # fmt: skip
        try:
            run.start()
            run.keys()
            closed = run.close(closed_result(self.learner.clone(), federation, **self.options()))
        except RunEnded as end:
            return Ended(None, str(end), run.blame(), run.k)
        return Ended(closed, "", "", run.k)

    def run(self) -> list[Ended]:
        """All owners, each in a thread."""
        self.board = MemoryBoard(self.owners, self.patience)
        ended: dict[int, Any] = {}

        def go(index: int) -> None:
            try:
                ended[index] = self.owner(index, self.board)
            except BaseException as error:
                ended[index] = error

        threads = [Thread(target=go, args=(i,), daemon=True) for i in range(self.owners)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        for end in ended.values():
            if isinstance(end, BaseException):
                raise end
        return [ended[i] for i in range(self.owners)]

    def opened(self, closed: Closed) -> bytes:
        """What the researcher reads."""
        known = {"epoch": EPOCH, "keys": keys(self.owners), "text": self.text}
        return open_result(closed.sealed, RESEARCHER, **known).result
