"""The solver's main program: carry out the order on standard input.

Every failure is reported over the channel of the order, or on standard error.
"""

import hashlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Optional, Union

from . import engines, generation, messages, probe
from .hub_connection import HubConnection, HubConnectionError
from .order import OrderError, SolverOrder, read_order
from .standard_output import StandardOutput

Channel = Union[StandardOutput, HubConnection]
# Names a file while the executor works for others: the JSON list of its receipts.
BUSY = "GPUYARD_VERIFY_BUSY"
_LONGEST_REASON = 1000


def main() -> int:
    """Carry out the order; returns the exit code (see solve.py)."""
    channel: Optional[Channel] = None
    try:
        order = read_order(sys.stdin.read())
        channel = (
            HubConnection(order) if order.stream is not None else StandardOutput(order)
        )
        _carry_out(order, channel)
        channel.close()
        return 0
    except OrderError as error:
        return _failed(channel, f"the order is wrong: {error}", 2)
    except (engines.EngineError, HubConnectionError) as error:
        return _failed(channel, str(error), 1)
    except Exception as error:  # noqa: BLE001  # an engine can raise anything
        traceback.print_exc()
        return _failed(channel, f"{type(error).__name__}: {error}", 1)


def _failed(channel: Optional[Channel], reason: str, code: int) -> int:
    sys.stderr.write(f"solver: {reason}\n")
    if channel is not None:
        try:
            channel.send({"type": "failed", "reason": reason[:_LONGEST_REASON]})
            channel.close()
        except (HubConnectionError, OSError):
            pass
    return code


def _carry_out(order: SolverOrder, channel: Channel) -> None:
    receipts = _receipts()
    if receipts is not None:
        channel.send({"type": "declined", "reason": "busy", "receipts": receipts})
        return
    {"solve": _solve, "generate": _generate, "probe": _probe}[order.task](
        order, channel
    )


def _solve(order: SolverOrder, channel: Channel) -> None:
    """Between the seed and the hash there is nothing but answering.

    Everything that takes longer is done before or after.
    """
    engine = engines.load(order.engine, order.settings, len(order.prompts))
    probe.prepare(order.claims)
    channel.send({"type": "ready"})
    seed = channel.seed()
    began = time.monotonic()
    answers = engine.answer(order.prompts, seed)
    data = messages.canonical(dict(zip(order.prompts, answers)))
    solve_s = time.monotonic() - began
    channel.send(
        {"type": "hash", "sha256": hashlib.sha256(data).hexdigest(), "solve_s": solve_s}
    )
    if probe.asked(order.claims):
        began = time.monotonic()
        # Memory that the engine still held could not be proven.
        engine.close()
        # The nonce depends on the seed, so the proofs cannot be started early.
        _claim(
            {"nonce": probe.nonce_of(order.check, seed), **order.claims}, channel, began
        )
    _send_file(channel, "answers", data)


def _generate(order: SolverOrder, channel: Channel) -> None:
    wanted: dict[str, Any] = order.generate
    prompts = wanted["prompts"]
    engine = engines.load(order.engine, order.settings, prompts + generation.SURPLUS)
    channel.send({"type": "ready"})
    series = generation.make_series(engine, wanted["series"], prompts, wanted["seed"])
    _send_file(channel, "series", messages.canonical(series))


def _probe(order: SolverOrder, channel: Channel) -> None:
    probe.prepare(order.claims)
    channel.send({"type": "ready"})
    _claim(order.claims, channel, time.monotonic())


def _claim(wanted: dict[str, Any], channel: Channel, began: float) -> None:
    channel.send(
        {"type": "claims", **probe.claims(wanted), "took_s": time.monotonic() - began}
    )


def _send_file(channel: Channel, kind: str, data: bytes) -> None:
    for message in messages.pieces(kind, data, channel.piece_bytes):
        channel.send(message)


def _receipts() -> Optional[Any]:
    """The receipts of an executor that is busy; None when it is not."""
    name = os.environ.get(BUSY)
    if not name or not Path(name).exists():
        return None
    return json.loads(Path(name).read_text())
