"""What a solver may say, and when: JSON objects, one a line, each checked before anybody looks into it."""

import base64
import binascii
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gpuyard.domain.errors import quoted

LONGEST_LINE = 1 << 20
# Before a message on standard output; see solver/lines.py.
WORD = "gpuyard-verify "
_MOST_PIECES = 1 << 15
# Characters of an error's parts.
_LONGEST_FIELD, _LONGEST_FAULT = 60, 200


class ProtocolError(Exception):
    """A solver said what it may not say, or not then. The text tells a person what, and what would be right."""


def one_line(text: str) -> str:
    """A text as logs, databases and the yard's records take it: without control characters and ends of lines."""
    return "".join(character if character.isprintable() else " " for character in text)


def _numbers(value: dict[str, Any]) -> dict[str, Any]:
    """NaN and infinity are no JSON: PostgreSQL would refuse them, and with them a whole batch."""
    json.dumps(value, allow_nan=False)
    return value


Words = Annotated[str, AfterValidator(one_line)]
Object = Annotated[dict[str, Any], AfterValidator(_numbers)]


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Ready(_Said):
    """The engine is loaded; nothing but the seed is missing."""

    type: Literal["ready"] = "ready"


class Declined(_Said):
    """The executor will not solve. Only receipts for other work excuse it."""

    type: Literal["declined"] = "declined"
    reason: Words = Field(max_length=200)
    receipts: list[Object] = Field(default=[], max_length=64)


class Hash(_Said):
    """The SHA-256 of the answer file, which is to follow. `solve_s` is what the solver says it took."""

    type: Literal["hash"] = "hash"
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    solve_s: float = Field(ge=0)


class Claims(_Said):
    """What the executor says of its GPUs; None where it was not asked. `took_s` is what the solver says it took."""

    type: Literal["claims"] = "claims"
    inventory: list[Object] | None = Field(default=None, max_length=64)
    vram: Object | None = None
    speed: Object | None = None
    took_s: float = Field(default=0.0, ge=0)


class Piece(_Said):
    """A part of a zipped file: `part` counts from 0 and is one of `of`; `data` is base64."""

    part: int = Field(ge=0)
    of: int = Field(ge=1, le=_MOST_PIECES)
    data: str = Field(min_length=1)

    def bytes(self) -> bytes:
        """The piece itself. Raises `ProtocolError` where it is no base64."""
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ProtocolError(f"data: part {self.part} is no base64 ({error})") from error


class Answers(Piece):
    """A part of the answer file."""

    type: Literal["answers"] = "answers"


class Series(Piece):
    """A part of the file of series that were generated."""

    type: Literal["series"] = "series"


class Failed(_Said):
    """The solver cannot go on."""

    type: Literal["failed"] = "failed"
    reason: Words = Field(max_length=2000)


Message = Ready | Declined | Hash | Claims | Answers | Series | Failed
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


def parse(line: bytes) -> Message:
    """One line as a message. Raises `ProtocolError`."""
    if len(line) > LONGEST_LINE:
        raise ProtocolError(f"a line has more than {LONGEST_LINE} bytes")
    try:
        return _MESSAGE.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "message"
        # Both hold what the solver wrote: names of fields, the type that it made up.
        fault = one_line(f"{field[:_LONGEST_FIELD]}: {first['msg'][:_LONGEST_FAULT]}")
        raise ProtocolError(f"{fault}; the line begins {quoted(line)}") from None


def parse_output(line: str) -> Message | None:
    """A line of a job's output; None where it is none of the solver's messages. Raises `ProtocolError`."""
    if not line.startswith(WORD):
        return None
    return parse(line[len(WORD) :].encode())


class Task(StrEnum):
    """What an order asks for."""

    SOLVE = "solve"
    GENERATE = "generate"
    PROBE = "probe"


class Stage(StrEnum):
    """How far a solver has come."""

    STARTING = "starting"
    READY = "ready"
    SOLVING = "solving"
    HASHED = "hashed"
    CLAIMED = "claimed"
    SENDING = "sending"
    OVER = "over"


_EARLY = {"declined": Stage.OVER, "failed": Stage.OVER}
_FAILED = {"failed": Stage.OVER}
# By task: the messages each stage allows, and where they lead. The last piece of a file leads to `over`.
_MOVES: Mapping[Task, Mapping[Stage, Mapping[str, Stage]]] = {
    Task.SOLVE: {
        Stage.STARTING: {"ready": Stage.READY, **_EARLY},
        Stage.READY: _EARLY,
        Stage.SOLVING: {"hash": Stage.HASHED, **_FAILED},
        Stage.HASHED: {"claims": Stage.CLAIMED, "answers": Stage.SENDING, **_FAILED},
        Stage.CLAIMED: {"answers": Stage.SENDING, **_FAILED},
        Stage.SENDING: {"answers": Stage.SENDING, **_FAILED},
    },
    Task.GENERATE: {
        Stage.STARTING: {"ready": Stage.READY, **_EARLY},
        Stage.READY: {"series": Stage.SENDING, **_FAILED},
        Stage.SENDING: {"series": Stage.SENDING, **_FAILED},
    },
    Task.PROBE: {
        Stage.STARTING: {"ready": Stage.READY, **_EARLY},
        Stage.READY: {"claims": Stage.OVER, **_FAILED},
    },
}


class Conversation:
    """Holds a solver to the order of things: no answer before its hash, no hash before the seed, nothing twice."""

    def __init__(self, task: Task = Task.SOLVE, *, seeded: bool = False) -> None:
        """`seeded`: the seed was in the order, so the solver begins as soon as it is ready."""
        self._task, self._seeded = task, seeded
        self.stage = Stage.STARTING

    def release(self) -> None:
        """The seed is out."""
        if self.stage is not Stage.READY:
            raise ProtocolError(f"the seed goes to solvers that are ready, and this one is at {self.stage}")
        self.stage = Stage.SOLVING

    def end(self) -> None:
        """Nothing more is to be said."""
        self.stage = Stage.OVER

    def take(self, message: Message) -> Message:
        """The message, if this is its time. Raises `ProtocolError`, after which nothing else counts."""
        allowed = _MOVES[self._task].get(self.stage, {})
        if message.type not in allowed:
            stage, self.stage = self.stage, Stage.OVER
            right = " or ".join(allowed) or "nothing more"
            raise ProtocolError(f"{message.type}: not to be sent at the stage {stage}, but {right}")
        self.stage = allowed[message.type]
        if isinstance(message, Piece) and message.part == message.of - 1:
            self.stage = Stage.OVER
        if self._task is Task.SOLVE and self._seeded and self.stage is Stage.READY:
            self.stage = Stage.SOLVING
        return message
