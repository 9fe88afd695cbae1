"""Solvers that say anything at all: their own checks end, and nothing else is harmed."""

import json
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuyard.verification.hub import ConnectionLostError, Hub, SolverConnection
from gpuyard.verification.protocol import (
    LONGEST_LINE,
    ProtocolError,
    Ready,
    SolverTask,
)
from tests.integration.verification.hubs import Caller
from tests.support.examples import examples

pytestmark = pytest.mark.anyio
# A connection lasts for some 20 messages: `make soak` sends a million.
CONNECTIONS = 50_000 if examples(10) == 10 else 60
MOST_MESSAGES = 400
ANYTHING = (None, True, -1, 0, 1, 2**70, 1e308, "", "\0", "é🙂", "x" * 70_000, [], {})
GROWTH_MB = 64


class SolverFuzzer:
    """Makes lines; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def lines(self) -> Iterator[bytes]:
        """What a solver that generates series says; most of it is as it should be."""
        yield b'{"type":"ready"}\n'
        for _ in range(MOST_MESSAGES):
            yield self._line()

    def _line(self) -> bytes:
        whole = json.dumps(self._message()).encode()
        damage = self._random.randrange(100)
        if damage == 0:
            return whole[: len(whole) // 2] + b"\n"
        if damage == 1:
            return self._random.randbytes(60) + b"\n"
        if damage == 2:
            return b"[" * 100_000 + b"\n"
        if damage == 3:
            return b'"' + b"x" * LONGEST_LINE + b'"\n'
        return whole + b"\n"

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"type": "series", "part": 0, "of": 9, "data": "YQ=="}
        chance = self._random.randrange(100)
        if chance < 2:
            kinds = ("ready", "declined", "hash", "claims", "answers", "failed", "end")
            message["type"] = self._random.choice(kinds)
        elif chance < 4:
            name = self._random.choice(("type", "part", "of", "data", "more"))
            message[name] = self._random.choice(ANYTHING)
        return message


async def _talk(hub: Hub, seed: int, folder: Path) -> str:
    """How the connection of a solver ended that says what the fuzzer makes."""
    check_id = f"check-{seed}"
    stream = hub.invite(check_id, task=SolverTask.GENERATE)
    caller = await Caller.connect(stream, folder)
    connection = await hub.expect(check_id, 60)
    try:
        for line in SolverFuzzer(seed).lines():
            await caller.say(line)
            await connection.receive(60)
    except (ProtocolError, ConnectionLostError, ConnectionError) as error:
        return type(error).__name__
    finally:
        caller.leave()
        hub.dismiss(check_id)
    return "over"


async def _ready(connection: SolverConnection) -> bool:
    return isinstance(await connection.receive(60), Ready)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.timeout(7200)
async def test_a_solver_that_says_anything_harms_only_its_own_check(
    tmp_path: Path,
) -> None:
    async with Hub() as hub:
        honest = await Caller.connect(hub.invite("honest"), tmp_path)
        ends = {await _talk(hub, seed, tmp_path) for seed in range(10)}
        files = psutil.Process().num_fds()
        peak_mb = _peak_mb()
        for seed in range(10, CONNECTIONS):
            ends.add(await _talk(hub, seed, tmp_path))
        assert ends == {"ProtocolError"}
        assert psutil.Process().num_fds() <= files + 4
        assert _peak_mb() - peak_mb < GROWTH_MB
        await honest.say({"type": "ready"})
        assert await _ready(await hub.expect("honest", 60))
