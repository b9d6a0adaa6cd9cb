"""Every message between driver, coordinator and agent, each defined once.

A driver makes a :class:`NewAsk`; the coordinator stores it as a row that has its fields and hands
them to an agent as :class:`PendingAsk`; the agent answers with a :class:`NewReply`, and the driver
reads it as a :class:`Reply`. What several of them say lies in a base class: a field added to
:class:`Call` is in the ask on its whole way.

Reading a message checks it, on every side: nobody here trusts the sender. Payloads are not part of
messages. They travel as blobs, named by their SHA-256, or, when small, as base64 in ``frame``.
An acknowledgement that nobody reads is a plain dictionary of the route that gives it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from solera.core.errors import PayloadError

INLINE = 1 << 16
"""Blobs up to this size travel inside the message that names them, which spares a request."""

MOST_TOLD = 256
"""Of so many clients a round's note says what each of them told."""
NO_START = "0" * 32
"""What a client takes for the coordinator's start before it has heard of one."""
DEFAULT_SECONDS = 7 * 24 * 3600.0
"""The time of a job that does not say how long it may take; a standing one has no end."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
DIGEST = r"^[0-9a-f]{64}$"
SIGNATURE = r"^[0-9a-f]{128}$"
_SHOWN = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def _whole(pattern: str) -> str:
    """For Python ``$`` also matches before a last newline."""
    return pattern[:-1] + r"\Z"


Name = Annotated[str, Meta(pattern=_whole(NAME), examples=["cardio-2"])]
Digest = Annotated[str, Meta(pattern=_whole(DIGEST), examples=[_SHOWN])]
Signature = Annotated[str, Meta(pattern=_whole(SIGNATURE), examples=[2 * _SHOWN])]
Number = Annotated[int, Meta(ge=0, lt=2**31, examples=[3])]
Size = Annotated[int, Meta(ge=0, lt=2**50, examples=[81920])]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1, examples=[7])]
Seconds = Annotated[float, Meta(gt=0, examples=[3600.0])]
TaskName = Annotated[str, Meta(max_length=200, examples=["linear.train"])]
FactName = Annotated[str, Meta(max_length=50, examples=["loss"])]
Person = Annotated[str, Meta(max_length=200, examples=["ana@example.org"])]
Reason = Annotated[str, Meta(max_length=2000, examples=["too few rows"])]
Frame = Annotated[str, Meta(max_length=2 * INLINE, examples=["U09MAQ=="])]

Kind: TypeAlias = Literal["driven", "managed", "standing"]
State: TypeAlias = Literal[
    "created", "waiting", "running", "finished", "failed", "cancelled", "expired"
]
Status: TypeAlias = Literal["ok", "refused", "failed"]
"""What a client says of its own reply."""

T = TypeVar("T")


class Message(Struct):
    """The base of all messages, and of the rows that store them."""

    @classmethod
    def of(cls, *sources: object, **fields: Any) -> Self:
        """The message with these fields; the others are those of the sources, the first first."""
        for name in cls.__struct_fields__:
            for source in sources:
                if name not in fields and hasattr(source, name):
                    fields[name] = getattr(source, name)
        return cls(**fields)


def read(content: bytes, kind: type[T]) -> T:
    """The message in a body, checked. An error does not repeat what was sent, which may be bad."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:
        wrong = re.sub("value .* - at", "value - at", str(error)[:1000], flags=re.DOTALL)
        raise PayloadError(wrong) from None


# --- asks ----------------------------------------------------------------------------------------


class Call(Message, kw_only=True):
    """What is asked: a task, the blob of its payload, and how the rows are prepared for it.

    Every ask has these fields, from the driver to the agent. It is also the one question of a
    standing job.
    """

    task: TaskName
    version: Number
    payload: Digest
    prepare: Digest | None = None


def covered(payload: Any, cover: Any) -> Any:
    """What the blob of a payload holds: itself, or beside it how the reply is to be covered."""
    return payload if cover is None else {"$payload": payload, "$cover": cover}


def uncovered(content: Any) -> tuple[Any, Any]:
    """The payload and the cover that :func:`covered` put together."""
    if isinstance(content, dict) and content.keys() == {"$payload", "$cover"}:
        return content["$payload"], content["$cover"]
    return content, None


class NewAsk(Call, kw_only=True):
    """An ask of a driver; ``payload`` is a blob for all clients, or one for each.

    ``frames`` are small ones of the blobs that it names, as base64.
    """

    payload: Digest | dict[int, Digest]  # type: ignore[assignment]
    frames: dict[Digest, Frame] = {}
    round: Number
    clients: Annotated[list[Number], Meta(min_length=1, examples=[[0, 1]])]
    seconds: Seconds | None = None


class PendingAsk(Call, kw_only=True):
    """An ask as an agent sees it. ``spec`` names the blob of the job's description.

    ``hash`` is of both the job and its description; agents work it out themselves.
    """

    prepare: Digest | None
    job: Name
    sequence: Number
    kind: TaskName
    spec: Digest
    hash: Digest
    owner: Person
    seed: Seed
    round: Number
    deadline: float | None = None
    frame: str | None = None


class Work(Message):
    """The asks that wait for a client."""

    asks: list[PendingAsk]


# --- replies -------------------------------------------------------------------------------------


class Answer(Message, kw_only=True):
    """What became of an ask at one client; ``digest`` names the blob of an answer."""

    status: str
    digest: Digest | None = None
    size: Size
    reason: Reason = ""


class NewReply(Answer, kw_only=True):
    """A reply, signed by the client; ``frame`` is a small blob itself, as base64."""

    status: Status
    signature: Signature
    frame: Frame | None = None


class Reply(Answer, kw_only=True):
    """A reply as the driver sees it; what the coordinator itself says has no ``signature``."""

    client: int
    signature: Signature | None = None
    frame: str | None = None


class Replies(Message):
    """Replies and failures so far of those asked about; ``complete`` when no more will come."""

    complete: bool
    replies: list[Reply]


class NewProblem(Message):
    """Something is wrong with what a client replied."""

    client: Number
    reason: Reason


class NewCheckpoint(Message):
    """What the driver knows after the asks from ``first`` to before ``sequence``."""

    first: Number
    sequence: Number
    digest: Digest


class Checkpoint(Message):
    """Where a replay goes on; empty if from the start."""

    sequence: int | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET


# --- jobs ----------------------------------------------------------------------------------------


class NewJob(Message):
    """A job; ``spec`` names the blob that describes it, ``seconds`` is the time it has."""

    id: Name
    kind: Kind
    spec: Digest
    seed: Seed
    owner: Person
    seconds: Seconds | None = None


class Job(Message):
    """``spec`` is the digest of its description, ``hash`` what people approve.

    ``clients`` are those that take part, fixed when the job begins to run: a replay asks the same.
    """

    id: str
    federation: str
    kind: Kind
    spec: str
    hash: str
    seed: int
    owner: str
    deadline: float | None
    state: State
    reason: str
    created: float
    changed: float
    clients: list[int] | None


class StartedJob(Job):
    """A job that was started, now or before."""

    resumed: bool


class Model(Message):
    """The latest model of a job; ``contributions``: for each client, the ask it was made from."""

    job: str
    version: int
    digest: Digest
    contributions: dict[str, int]
    time: float


class Progress(Message):
    """How many asks a job has made, and how far the last one is."""

    asks: int
    task: str | UnsetType = UNSET
    round: int | UnsetType = UNSET
    deliveries: dict[str, int] | UnsetType = UNSET


class JobInWords(Job):
    """A job, and what it does or waits for."""

    words: str


class JobProgress(JobInWords):
    """A job, how far it is, and its latest model."""

    progress: Progress
    model: Model | None


class NewState(Message):
    """Where a job goes, and why."""

    state: State
    reason: Reason = ""


class Event(Message):
    """Something that happened."""

    id: int
    federation: str
    job: str | None
    client: int | None
    event: str
    reason: str
    time: float
    facts: dict[str, Any] | None


class Measured(Message, omit_defaults=True):
    """A figure: a number and whose rows it rests on, as ``solera.evaluation.figure`` has it."""

    value: float
    metric: FactName
    part: FactName
    rows: int | None = None
    clients: int = 0
    asked: int = 0
    absent: int = 0
    withheld: int = 0
    interval: tuple[float, float] | None = None
    bound: float = 0.0
    positive: str = ""


class NewNote(Message):
    """What a learner has to say of itself: of a round, of its evaluation, of what the job took.

    ``told`` is the mean loss of each client over its own rows, as far as its replies of the round
    tell it.
    """

    event: Literal["round", "evaluated", "cost"]
    facts: Annotated[
        dict[FactName, float | Measured], Meta(max_length=40, examples=[{"loss": 0.41}])
    ]
    told: Annotated[dict[Number, float], Meta(max_length=MOST_TOLD)] = {}


# --- standing jobs -------------------------------------------------------------------------------


class Contribution(Message):
    """One contribution, and whether it waits for the client or to be folded, or what came of it."""

    id: int
    client: int
    state: str
    reason: str


class Queued(Message):
    """The latest answer of a client to a standing job, signed by it."""

    sequence: int
    digest: Digest
    size: int
    round: int
    signature: Signature


class Queue(Message):
    """The contributions to a standing job; only ``state``, a digest of them, if nothing is new.

    ``open`` are the asks, by number, that clients have yet to answer.
    """

    state: str
    answers: dict[int, Queued] | UnsetType = UNSET
    open: list[int] | UnsetType = UNSET
    running: bool | UnsetType = UNSET


class NewModel(Message):
    """A model, and the asks it was made from, by client."""

    digest: Digest
    contributions: dict[int, Number] = {}


# --- members -------------------------------------------------------------------------------------


class NewInvite(Message):
    """What the client will be called."""

    name: Name


class Invite(Message):
    """A token with which one client may join."""

    token: str


class Join(Message):
    """The keys of a new client, and the token of its invitation."""

    token: Annotated[str, Meta(max_length=200, examples=["cardio/north/Zk0cQe1xv3m2bS9d7fTq5w"])]
    sign_key: Digest
    seal_key: Digest
    seal_signature: Signature
    tasks: Annotated[dict[TaskName, Number], Meta(max_length=1000, examples=[{"data.describe": 1}])]


class Enrolled(Message):
    """What a coordinator says to a client that has joined."""

    client: Number
    name: Person
    federation: Person


class Heartbeat(Message, kw_only=True):
    """What a client is doing, which Solera it runs, and where its audit log ends: line and hash.

    ``policy`` is the name of its policy: what a driver may expect of it, and no more.
    """

    doing: TaskName = ""
    version: Annotated[str, Meta(max_length=50, examples=["1.0.0"])] = ""
    policy: Annotated[str, Meta(max_length=20, examples=["sums"])] = ""
    head: Annotated[
        tuple[Annotated[int, Meta(ge=0, lt=2**53)], Digest], Meta(examples=[[17, _SHOWN]])
    ]


class Member(Message):
    """A client, as drivers see it; ``head`` is the end of its audit log, as it said last.

    ``sign_key`` is its public key, by which its replies are known.
    """

    id: int
    name: str
    sign_key: Digest
    status: str
    seen: float | None
    doing: str
    head: list[Any] | None
    tasks: dict[str, int]
    policy: str | None = None


class Members(Message):
    """Who takes part in a federation."""

    name: str
    clients: list[Member]


class Peer(Message):
    """A client, as the others of its federation see it: who it is, and how to seal to it.

    ``seal_signature`` is its own, over the key to seal to.
    """

    id: int
    name: Name
    sign_key: Digest
    seal_key: Digest
    seal_signature: Signature


class Peers(Message):
    """Everyone who takes part in a client's federation, itself included."""

    peers: list[Peer]


class Introduction(Message):
    """How a client says who it is where nobody has enrolled it: its keys, and its tasks."""

    peer: Peer
    tasks: Annotated[dict[TaskName, Number], Meta(max_length=1000)]


class Why(Message):
    """Why."""

    reason: Reason = ""


class Held(Message):
    """Everything that is held for a client: rows of each table, and its blobs."""

    rows: dict[str, int]
    blobs: int
    bytes: int


class Statement(Message, kw_only=True):
    """What a coordinator signs with its ``key``, for a purpose of its own."""

    purpose: ClassVar[str]
    key: str = ""
    signature: str = ""


class Receipt(Statement):
    """For a client that left: nothing of it is held any more.

    ``client`` is its key, ``rows`` what was deleted, ``refolded`` the standing jobs whose models
    are folded again without it.
    """

    purpose: ClassVar[str] = "receipt"
    federation: str
    client: str
    rows: dict[str, int]
    refolded: list[str]
    time: float


class Left(Message):
    """What was deleted, and how many blobs stay because others refer to them."""

    rows: dict[str, int]
    blobs: int
    kept: int
    receipt: Receipt | None = None


# --- blobs ---------------------------------------------------------------------------------------


class Upload(Message):
    """How far an upload is: whether it is done, and the bytes received if not."""

    done: bool
    received: int
