"""What clients and drivers may send, how it is checked, and an example of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from solera.serve.connection import INLINE
from solera.serve.coordinator.store.tables import Kind, State, Status

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]

_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_SIGNATURE = 2 * _DIGEST


def _like(*examples: Any, **fields: Any) -> ConfigDict:
    """Examples for the service's description, or the fields of one."""
    return ConfigDict(json_schema_extra={"examples": list(examples) or [fields]})


class Join(BaseModel):
    """The keys of a new client, and the token of its invitation."""

    model_config = _like(
        token="cardio/north/Zk0cQe1xv3m2bS9d7fTq5wYh8uJr4nPa6gLoXiE_1kM",
        sign_key=_DIGEST,
        seal_key=_DIGEST,
        seal_signature=_SIGNATURE,
        tasks={"data.describe": 1, "linear.train": 1},
    )

    token: str = Field(max_length=200)
    sign_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    seal_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    seal_signature: str = Field(pattern=r"^[0-9a-f]{128}$")
    tasks: dict[str, int] = Field(max_length=1000)


class Heartbeat(BaseModel):
    """What a client is doing, and the line number and hash at the end of its audit log."""

    model_config = _like(doing="linear.train", head=[17, _DIGEST])

    doing: str = Field(default="", max_length=200)
    head: tuple[Annotated[int, Field(ge=0, lt=2**53)], Digest]


class NewJob(BaseModel):
    """A job; ``spec`` names the blob that describes it, ``seconds`` is the time it has."""

    model_config = _like(
        id="risk-2", kind="driven", spec=_DIGEST, seed=7, owner="ana@example.org", seconds=3600
    )

    id: Name
    kind: Kind
    spec: Digest
    seed: int = Field(ge=0, lt=2**63)
    owner: str = Field(max_length=200)
    seconds: float | None = Field(default=None, gt=0)


class NewAsk(BaseModel):
    """An ask; ``payload`` is a blob for all clients, or one for each."""

    model_config = _like(
        *(
            {
                "task": "linear.train",
                "version": 1,
                "payload": payload,
                "round": 3,
                "clients": [0, 1],
            }
            for payload in (_DIGEST, {"0": _DIGEST, "1": _DIGEST})
        )
    )

    task: str = Field(max_length=200)
    version: int = Field(ge=0, lt=2**31)
    payload: Digest | dict[int, Digest]
    prepare: Digest | None = None
    round: int = Field(ge=0, lt=2**31)
    seconds: float | None = Field(default=None, gt=0)
    clients: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(min_length=1)


class NewReply(BaseModel):
    """A reply, signed by the client; ``frame`` is a small blob itself, as base64."""

    model_config = _like(
        {"status": "ok", "digest": _DIGEST, "size": 81920, "signature": _SIGNATURE},
        {"status": "refused", "size": 0, "reason": "too few rows", "signature": _SIGNATURE},
    )

    status: Status
    digest: Digest | None = None
    size: int = Field(ge=0, lt=2**50)
    frame: str | None = Field(default=None, max_length=2 * INLINE)
    reason: str = Field(default="", max_length=2000)
    signature: str = Field(pattern=r"^[0-9a-f]{128}$")


class NewState(BaseModel):
    """Where a job goes, and why."""

    model_config = _like(state="cancelled", reason="the wrong columns")

    state: State
    reason: str = Field(default="", max_length=2000)


class Reason(BaseModel):
    """Why."""

    model_config = _like(reason="left the study")

    reason: str = Field(default="", max_length=2000)


Sequence = Annotated[int, Field(ge=0, lt=2**31)]


class NewCheckpoint(BaseModel):
    """What the driver knows after the asks from ``first`` to before ``sequence``."""

    model_config = _like(first=1, sequence=41, digest=_DIGEST)

    first: Sequence
    sequence: Sequence
    digest: Digest


class NewQuestion(BaseModel):
    """What a standing job asks everyone."""

    model_config = _like(task="heonn.fit", version=1, payload=_DIGEST)

    task: str = Field(max_length=200)
    version: int = Field(ge=0, lt=2**31)
    payload: Digest
    prepare: Digest | None = None


class NewModel(BaseModel):
    """A model, and the asks it was made from, by client."""

    model_config = _like(digest=_DIGEST, contributions={"0": 4, "2": 3})

    digest: Digest
    contributions: dict[int, Sequence] = Field(default_factory=dict)


class NewNote(BaseModel):
    """What a learner has to say of itself."""

    model_config = _like(event="round", facts={"round": 3, "loss": 0.41})

    event: Literal["round", "evaluated"]
    facts: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(max_length=100)


class NewProblem(BaseModel):
    """Something is wrong with what a client replied."""

    model_config = _like(client=1, reason="'coef' is not finite")

    client: Sequence
    reason: str = Field(max_length=2000)


class NewInvite(BaseModel):
    """What the client will be called."""

    model_config = _like(name="north")

    name: Name
