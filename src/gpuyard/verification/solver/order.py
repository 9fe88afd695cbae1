"""The order: a JSON document that says what to solve, how, and where to send it."""

import json
from dataclasses import dataclass
from typing import Any, Optional, cast

# Changes with all that both sides have to do alike, such as the nonce of the claims.
VERSION = 4
TASKS = ("solve", "generate", "probe")
# The default sampling. All executors of a class need the same.
SETTINGS = {"temperature": 0.5, "top_p": 0.8, "max_tokens": 256}


class OrderError(Exception):
    """The order is invalid; the text names the field."""


@dataclass(frozen=True)
class SolverOrder:
    """What the solver is asked to do.

    `seed` is None when the hub sends it. Without `stream`, messages go to standard
    output. `fingerprints`: send those of the answers, too. `tokens`: those of given
    answers (packed, in the order of the prompts), which are followed instead of drawn.
    """

    check: str
    task: str
    prompts: list[str]
    settings: dict[str, Any]
    engine: dict[str, Any]
    seed: Optional[int]
    stream: Optional[dict[str, Any]]
    claims: dict[str, Any]
    generate: dict[str, Any]
    fingerprints: bool
    tokens: str


def read_order(text: str) -> SolverOrder:
    """Parse an order; OrderError."""
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise OrderError(f"the order is no JSON document: {error}") from error
    if not isinstance(document, dict):
        raise OrderError("the order must be a JSON object")
    said = cast("dict[str, Any]", document)
    if said.get("version") != VERSION:
        reads = f"version: this solver reads {VERSION}, the order has"
        raise OrderError(
            f"{reads} {said.get('version')!r}; take the solver that comes with the"
            " gpuyard that asks"
        )
    order = SolverOrder(
        check=_of(said, "check", str, ""),
        task=_of(said, "task", str, ""),
        prompts=_of(said, "prompts", list, []),
        settings={**SETTINGS, **_of(said, "settings", dict, {})},
        engine=_of(said, "engine", dict, {}),
        seed=_of(said, "seed", int, None),
        stream=_of(said, "stream", dict, None),
        claims=_of(said, "claims", dict, {}),
        generate=_of(said, "generate", dict, {}),
        fingerprints=said.get("fingerprints") is True,
        tokens=_of(said, "tokens", str, ""),
    )
    _check(order)
    return order


def _of(said: dict[str, Any], field: str, kind: type, default: Any) -> Any:
    value = said.get(field)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise OrderError(
            f"{field}: must be of type {kind.__name__}, not {type(value).__name__}"
        )
    return value


def _check(order: SolverOrder) -> None:
    if order.task not in TASKS:
        raise OrderError(f"task: {order.task!r} is none of {', '.join(TASKS)}")
    if order.task == "solve":
        prompts: list[Any] = order.prompts
        if not prompts or not all(
            isinstance(prompt, str) and prompt for prompt in prompts
        ):
            raise OrderError(
                "prompts: must be a list of texts, at least one and none empty"
            )
        if len(set(order.prompts)) < len(order.prompts):
            raise OrderError("prompts: one comes twice")
        if order.seed is None and order.stream is None:
            raise OrderError("seed: must be given where there is no stream to bring it")
    if order.task == "generate":
        for field in ("series", "prompts", "seed"):
            if not isinstance(order.generate.get(field), int):
                raise OrderError(f"generate.{field}: must be a whole number")
