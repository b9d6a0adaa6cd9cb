"""What clients and drivers may send, and how it is checked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from solera.engines.connection import INLINE
from solera.serve.tables import Kind, State, Status

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Join(BaseModel):
    token: str = Field(max_length=200)
    sign_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    seal_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    seal_signature: str = Field(pattern=r"^[0-9a-f]{128}$")
    tasks: dict[str, int] = Field(max_length=1000)


class Heartbeat(BaseModel):
    """What a client is doing, and the line number and hash at the end of its audit log."""

    doing: str = Field(default="", max_length=200)
    head: tuple[Annotated[int, Field(ge=0, lt=2**53)], Digest]


class NewJob(BaseModel):
    id: Name
    kind: Kind
    spec: Digest
    seed: int = Field(ge=0, lt=2**63)
    owner: str = Field(max_length=200)
    seconds: float | None = Field(default=None, gt=0)


class NewAsk(BaseModel):
    task: str = Field(max_length=200)
    version: int = Field(ge=0, lt=2**31)
    payload: Digest | dict[int, Digest]
    prepare: Digest | None = None
    round: int = Field(ge=0, lt=2**31)
    seconds: float | None = Field(default=None, gt=0)
    clients: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(min_length=1)


class NewReply(BaseModel):
    status: Status
    digest: Digest | None = None
    size: int = Field(ge=0, lt=2**50)
    frame: str | None = Field(default=None, max_length=2 * INLINE)
    reason: str = Field(default="", max_length=2000)
    signature: str = Field(pattern=r"^[0-9a-f]{128}$")


class NewState(BaseModel):
    state: State
    reason: str = Field(default="", max_length=2000)


class Reason(BaseModel):
    reason: str = Field(default="", max_length=2000)


Sequence = Annotated[int, Field(ge=0, lt=2**31)]


class NewCheckpoint(BaseModel):
    """What the driver knows after the asks from ``first`` to before ``sequence``."""

    first: Sequence
    sequence: Sequence
    digest: Digest


class NewQuestion(BaseModel):
    task: str = Field(max_length=200)
    version: int = Field(ge=0, lt=2**31)
    payload: Digest
    prepare: Digest | None = None


class NewModel(BaseModel):
    """A model, and the asks it was made from, by client."""

    digest: Digest
    contributions: dict[int, Sequence] = Field(default_factory=dict)


class NewNote(BaseModel):
    """What a learner has to say of itself."""

    event: Literal["round", "evaluated"]
    facts: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(max_length=100)


class NewProblem(BaseModel):
    """Something is wrong with what a client replied."""

    client: Sequence
    reason: str = Field(max_length=2000)


class NewInvite(BaseModel):
    name: Name
