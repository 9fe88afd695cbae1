"""The messages of a solver: which there are, and in which order they may come.

Each is a JSON object on a line of its own, and is validated before it is used.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from gpuyard.domain.errors import quoted

LONGEST_LINE = 1 << 20
# Stands before each message on standard output; see solver/standard_output.py.
WORD = "> "
_MOST_PIECES = 1 << 15
# Characters of an error's parts.
_LONGEST_FIELD = 60
_LONGEST_FAULT = 200


class ProtocolError(Exception):
    """A solver sent an invalid message, or one that was not due.

    The text says what is wrong and what would be right.
    """


def one_line(text: str) -> str:
    """Replace control characters and line ends by spaces, for logs and databases."""
    return "".join(character if character.isprintable() else " " for character in text)


def _numbers(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse NaN and infinity.

    They are not JSON, and PostgreSQL would refuse the whole batch because of them.
    """
    json.dumps(value, allow_nan=False)
    return value


Words = Annotated[str, AfterValidator(one_line)]
ShortWords = Annotated[Words, Field(max_length=200)]
Object = Annotated[dict[str, Any], AfterValidator(_numbers)]


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Said(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False
    )


class Ready(_Said):
    """The engine is loaded; only the seed is missing.

    `runtime`: what the digits of its answers depend on, as it says.
    """

    type: Literal["ready"] = "ready"
    runtime: dict[ShortWords, ShortWords] = Field(default={}, max_length=8)


class Declined(_Said):
    """The executor refuses to solve. Only receipts for other work excuse that."""

    type: Literal["declined"] = "declined"
    reason: Words = Field(max_length=200)
    receipts: list[Object] = Field(default=[], max_length=64)


class Hash(_Said):
    """The SHA-256 of the answer file, which follows.

    `fingerprints`: that of the file of their fingerprints, if it was asked for.
    `solve_s`: how long solving took, as the solver says.
    """

    type: Literal["hash"] = "hash"
    sha256: Sha256
    fingerprints: Sha256 | None = None
    solve_s: float = Field(ge=0)


class Claims(_Said):
    """What the executor says about its GPUs; None for what it was not asked.

    `took_s`: how long that took, as the solver says. Written out, it is no longer than
    a line may be, so that evidence has room for it.
    """

    type: Literal["claims"] = "claims"
    inventory: list[Object] | None = Field(default=None, max_length=64)
    vram: Object | None = None
    speed: Object | None = None
    took_s: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        # A number such as 1e15 is longer in evidence than on its line.
        said = json.dumps(self.model_dump(), ensure_ascii=False)
        if len(said.encode("utf-8", "replace")) > LONGEST_LINE:
            raise ValueError(f"claims are longer than {LONGEST_LINE} bytes")
        return self


class Piece(_Said):
    """A part of a zipped file, in base64: number `part`, from 0, of `of` parts."""

    part: int = Field(ge=0)
    of: int = Field(ge=1, le=_MOST_PIECES)
    data: str = Field(min_length=1)

    def bytes(self) -> bytes:
        """The decoded bytes; ProtocolError when it is not base64."""
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ProtocolError(
                f"data: part {self.part} is no base64 ({error})"
            ) from error


class AnswersPiece(Piece):
    """A part of the answer file."""

    type: Literal["answers"] = "answers"


class FingerprintsPiece(Piece):
    """A part of the file of the answers' fingerprints, which comes before them."""

    type: Literal["fingerprints"] = "fingerprints"


class SeriesPiece(Piece):
    """A part of the file of generated series."""

    type: Literal["series"] = "series"


class Failed(_Said):
    """The solver cannot continue."""

    type: Literal["failed"] = "failed"
    reason: Words = Field(max_length=2000)


Message = (
    Ready
    | Declined
    | Hash
    | Claims
    | FingerprintsPiece
    | AnswersPiece
    | SeriesPiece
    | Failed
)
_MESSAGE: TypeAdapter[Message] = TypeAdapter(
    Annotated[Message, Field(discriminator="type")]
)


def parse(line: bytes) -> Message:
    """Parse one line as a message; ProtocolError."""
    if len(line) > LONGEST_LINE:
        raise ProtocolError(f"a line has more than {LONGEST_LINE} bytes")
    try:
        return _MESSAGE.validate_json(line)
    except ValidationError as error:
        first = error.errors(
            include_url=False, include_input=False, include_context=False
        )[0]
        field = ".".join(map(str, first["loc"])) or "message"
        # Both contain text of the solver, such as invented field names.
        fault = one_line(f"{field[:_LONGEST_FIELD]}: {first['msg'][:_LONGEST_FAULT]}")
        raise ProtocolError(f"{fault}; the line begins {quoted(line)}") from None


def parse_output(line: str) -> Message | None:
    """Parse a line of a job's output; None when it is not a message of the solver.

    Raises ProtocolError.
    """
    # Engines print lines that begin like that, too, but no objects.
    if not line.startswith(f"{WORD}{{"):
        return None
    return parse(line[len(WORD) :].encode())


class SolverTask(StrEnum):
    """What an order asks for."""

    SOLVE = "solve"
    GENERATE = "generate"
    PROBE = "probe"


class SolverStage(StrEnum):
    """How far a solver has come."""

    STARTING = "starting"
    READY = "ready"
    SOLVING = "solving"
    HASHED = "hashed"
    CLAIMED = "claimed"
    PRINTING = "printing"
    SENDING = "sending"
    OVER = "over"


_EARLY = {"declined": SolverStage.OVER, "failed": SolverStage.OVER}
_FAILED = {"failed": SolverStage.OVER}
# By task and stage: the messages that are due, and the stage they lead to. The last
# piece of answers or series leads to `over`.
_MOVES: Mapping[SolverTask, Mapping[SolverStage, Mapping[str, SolverStage]]] = {
    SolverTask.SOLVE: {
        SolverStage.STARTING: {"ready": SolverStage.READY, **_EARLY},
        SolverStage.READY: _EARLY,
        SolverStage.SOLVING: {"hash": SolverStage.HASHED, **_FAILED},
        SolverStage.HASHED: {
            "claims": SolverStage.CLAIMED,
            "fingerprints": SolverStage.PRINTING,
            "answers": SolverStage.SENDING,
            **_FAILED,
        },
        SolverStage.CLAIMED: {
            "fingerprints": SolverStage.PRINTING,
            "answers": SolverStage.SENDING,
            **_FAILED,
        },
        SolverStage.PRINTING: {
            "fingerprints": SolverStage.PRINTING,
            "answers": SolverStage.SENDING,
            **_FAILED,
        },
        SolverStage.SENDING: {"answers": SolverStage.SENDING, **_FAILED},
    },
    SolverTask.GENERATE: {
        SolverStage.STARTING: {"ready": SolverStage.READY, **_EARLY},
        SolverStage.READY: {"series": SolverStage.SENDING, **_FAILED},
        SolverStage.SENDING: {"series": SolverStage.SENDING, **_FAILED},
    },
    SolverTask.PROBE: {
        SolverStage.STARTING: {"ready": SolverStage.READY, **_EARLY},
        SolverStage.READY: {"claims": SolverStage.OVER, **_FAILED},
    },
}


class Conversation:
    """Checks the order of a solver's messages.

    For example, no hash before the seed, no answers before the hash, and nothing twice.
    """

    def __init__(
        self, task: SolverTask = SolverTask.SOLVE, *, seeded: bool = False
    ) -> None:
        """`seeded`: the order has the seed, so the solver does not wait for it."""
        self._task = task
        self._seeded = seeded
        self.stage = SolverStage.STARTING

    def release(self) -> None:
        """Note that the seed was sent."""
        if self.stage is not SolverStage.READY:
            raise ProtocolError(
                "the seed goes to solvers that are ready, and this one is at"
                f" {self.stage}"
            )
        self.stage = SolverStage.SOLVING

    def end(self) -> None:
        """Note that no more messages are due."""
        self.stage = SolverStage.OVER

    def take(self, message: Message) -> Message:
        """Return the message if it is due now.

        Otherwise raises ProtocolError, and no later message is accepted.
        """
        allowed = _MOVES[self._task].get(self.stage, {})
        if message.type not in allowed:
            stage = self.stage
            self.stage = SolverStage.OVER
            right = " or ".join(allowed) or "nothing more"
            raise ProtocolError(
                f"{message.type}: not to be sent at the stage {stage}, but {right}"
            )
        self.stage = allowed[message.type]
        last = isinstance(message, Piece) and message.part == message.of - 1
        if last and not isinstance(message, FingerprintsPiece):
            self.stage = SolverStage.OVER
        if (
            self._task is SolverTask.SOLVE
            and self._seeded
            and self.stage is SolverStage.READY
        ):
            self.stage = SolverStage.SOLVING
        return message


OrderDocument = dict[str, Any]

SAMPLING: Mapping[str, Any] = {"temperature": 0.5, "top_p": 0.8, "max_tokens": 256}
"""The sampling settings of every solver (S0-41)."""
