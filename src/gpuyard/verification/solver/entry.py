"""The solver's main program: carry out the order on standard input.

Every failure is reported over the channel of the order, or on standard error.
"""

import hashlib
import json
import os
import sys
import time
import traceback
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Optional, Union

from . import engines, generation, messages, probe
from .engines import fingerprints
from .engines.fingerprints import PrintedAnswer
from .hub_connection import HubConnection, HubConnectionError
from .order import OrderError, SolverOrder, read_order
from .processes import ProcessTalk, SolverProcess, SolverProcessError
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
    except (engines.EngineError, HubConnectionError, SolverProcessError) as error:
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

    Everything that takes longer is done before or after. The claims come from a process
    of its own, and only after that of the engine has left the GPU: memory that an
    engine still holds could not be proven.
    """
    with ExitStack() as processes:
        prover = None
        if probe.asked(order.claims):
            prover = processes.enter_context(SolverProcess(partial(_prove, order)))
            prover.receive()
        engine = processes.enter_context(SolverProcess(partial(_answer, order)))
        channel.send({"type": "ready", "runtime": engine.receive()})
        seed = channel.seed()
        data, prints = _answered(order, channel, engine, seed)
        if prover:
            began = time.monotonic()
            # An engine may take seconds to close; a cheater would have them for proofs.
            engine.end(at_once=True)
            fixed = (_hash(data), _hash(prints) if order.fingerprints else None)
            nonce = probe.nonce_of(order.check, seed, *fixed, channel.salt())
            prover.send(nonce)
            found = prover.receive()
            took_s = time.monotonic() - began
            channel.send({"type": "claims", **found, "took_s": took_s})
        if prints:
            _send_file(channel, "fingerprints", prints)
        _send_file(channel, "answers", data)


def _answered(
    order: SolverOrder, channel: Channel, engine: SolverProcess, seed: int
) -> tuple[bytes, bytes]:
    """Send the hashes of the answers to all prompts, and of their fingerprints.

    Returns both files; that of the fingerprints is empty if they are not asked for.
    """
    began = time.monotonic()
    engine.send(seed)
    answers: dict[str, PrintedAnswer] = dict(zip(order.prompts, engine.receive()))
    texts = {prompt: answer.text for prompt, answer in answers.items()}
    data = messages.canonical(texts)
    said: dict[str, Any] = {"type": "hash", "sha256": _hash(data)}
    prints = b""
    if order.fingerprints:
        prints = fingerprints.pack(answers[prompt] for prompt in sorted(answers))
        said["fingerprints"] = _hash(prints)
    said["solve_s"] = time.monotonic() - began
    channel.send(said)
    return data, prints


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _answer(order: SolverOrder, talk: ProcessTalk) -> None:
    """The process of the engine: answers once, under the seed that it is told."""
    engine = engines.load(order.engine, order.settings, len(order.prompts))
    talk.send(engine.runtime())
    seed = talk.receive()
    if order.fingerprints:
        given = fingerprints.unpack_tokens(order.tokens) if order.tokens else None
        talk.send(engine.fingerprints(order.prompts, seed, given))
    else:
        texts = engine.answer(order.prompts, seed)
        talk.send([PrintedAnswer(text) for text in texts])
    engine.close()


def _prove(order: SolverOrder, talk: ProcessTalk) -> None:
    """The process of the claims, which begins them when it is told their nonce."""
    probe.prepare(order.claims)
    talk.send(None)
    talk.send(probe.claims({**order.claims, "nonce": talk.receive()}))


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
    began = time.monotonic()
    found = probe.claims(order.claims)
    channel.send({"type": "claims", **found, "took_s": time.monotonic() - began})


def _send_file(channel: Channel, kind: str, data: bytes) -> None:
    for message in messages.pieces(kind, data, channel.piece_bytes):
        channel.send(message)


def _receipts() -> Optional[Any]:
    """The receipts of an executor that is busy; None when it is not."""
    name = os.environ.get(BUSY)
    if not name or not Path(name).exists():
        return None
    return json.loads(Path(name).read_text())
