"""The start barrier of verification: how far apart 1,000 executors get their seeds,
over real TLS connections.
"""

import asyncio
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.bench import scaled
from benchmarks.figures import Figure
from gpuyard.verification.certificates import HubAuthority
from gpuyard.verification.hub import Hub, SolverConnection, release

GROUP = "verification"
CLIENTS = 2
# A client process: its connections wait for their seeds, and then for a line of nothing.
# It prints when each came, on the clock that all processes share.
CLIENT = """
import asyncio, json, ssl, sys, tempfile, time
import uvloop

async def one(stream, places, seeds, everybody):
    async with places:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(stream["certificate"] + stream["key"])
            file.flush()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_cert_chain(file.name)
        context.load_verify_locations(cadata=stream["authority"])
        reader, writer = await asyncio.open_connection(
            stream["host"], stream["port"], ssl=context, server_hostname="service")
        writer.write(b'{"type":"ready"}\\n')
    line = await reader.readline()
    seeds.append((time.monotonic(), json.loads(line)["seed"]))
    if len(seeds) == everybody:
        complete.set()
    await complete.wait()
    writer.write(b'{"type":"failed","reason":"heard"}\\n')
    await reader.readline()
    bare.append(time.monotonic())
    await reader.readline()

async def main():
    global complete, bare
    streams, places, seeds, complete = json.load(sys.stdin), asyncio.Semaphore(32), [], asyncio.Event()
    bare = []
    await asyncio.gather(*(one(stream, places, seeds, len(streams)) for stream in streams))
    json.dump({"seeds": seeds, "bare": bare}, sys.stdout)

uvloop.run(main())
"""


def figures(scale: float) -> Iterator[Figure]:
    """The spread in three ways, and what a connection costs."""
    count = scaled(1000, scale, 20)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "client.py"
        program.write_text(CLIENT)
        rounds = [uvloop.run(_barrier(program, count)) for _ in range(scaled(3, scale))]
    found = {name: [one[name] for one in rounds] for name in rounds[0]}
    name = f"{count:,} executors released, from the first seed"
    bare = "a bare line each, over the same connections"
    for spread, floor, words, target in (
        ("heard", "bare_heard", "that arrives to the last", 250),
        ("whole", "bare_whole", "sent to the last that arrives", 250),
        ("sent", "bare_sent", "sent to the last sent", None),
    ):
        yield Figure(
            GROUP,
            f"{name} {words}",
            found[spread],
            "ms",
            target,
            found[floor],
            bare,
            absolute=True,
        )
    yield Figure(
        GROUP,
        "processor time of the hub per executor that connects",
        found["connect"],
        "ms",
        2,
        found["certificate"],
        "making a certificate alone",
        absolute=True,
    )
    # Memory is new in the first round only.
    yield Figure(
        GROUP, "memory of the hub per executor", found["memory_kb"][:1], "kB", 100
    )


async def _barrier(program: Path, count: int) -> dict[str, float]:
    """One round: milliseconds by name, and the memory."""
    ids = [f"chk_{number}" for number in range(count)]
    async with Hub() as hub:
        memory = _memory_kb()
        worked_s = time.process_time()
        streams = [hub.invite(check_id) for check_id in ids]
        clients = [
            _client(program, streams[number::CLIENTS]) for number in range(CLIENTS)
        ]
        lines = await asyncio.gather(*(_ready(hub, check_id) for check_id in ids))
        worked_s = time.process_time() - worked_s
        memory = _memory_kb() - memory
        gc.collect()
        seeds = {check_id: number for number, check_id in enumerate(ids)}
        sent = release(lines, seeds)
        # A process says that it has heard its seeds when it has them all, so that
        # nothing else is under way till then.
        for line in lines:
            await line.receive()
        bare_sent = _send_bare_lines(lines)
        for line in lines:
            hub.dismiss(line.check_id)
        outputs = await asyncio.gather(
            *(asyncio.to_thread(client.communicate) for client in clients)
        )
    told = [json.loads(output) for output, _ in outputs]
    heard: list[tuple[float, int]] = [pair for one in told for pair in one["seeds"]]
    assert sorted(seed for _, seed in heard) == list(range(count))
    bare_heard: list[float] = [at for one in told for at in one["bare"]]
    return {
        **_spreads("", list(sent.values()), [at for at, _ in heard]),
        **_spreads("bare_", bare_sent, bare_heard),
        "connect": worked_s / count * 1000,
        "certificate": _certificate_s(count) / count * 1000,
        "memory_kb": memory / count,
    }


def _send_bare_lines(lines: Sequence[SolverConnection]) -> list[float]:
    """Send each a line of nothing; when each was sent."""
    sent: list[float] = []
    for line in lines:
        line.write(b"{}\n")
        sent.append(time.monotonic())
    return sent


def _spreads(
    prefix: str, sent: Sequence[float], heard: Sequence[float]
) -> dict[str, float]:
    """Milliseconds between the first and the last."""
    return {
        f"{prefix}heard": (max(heard) - min(heard)) * 1000,
        f"{prefix}whole": (max(heard) - min(sent)) * 1000,
        f"{prefix}sent": (max(sent) - min(sent)) * 1000,
    }


def _certificate_s(count: int) -> float:
    """Processor time in which so many certificates are made."""
    authority = HubAuthority.create()
    began = time.process_time()
    for number in range(count):
        authority.for_solver(f"chk_{number}", 3600)
    return time.process_time() - began


async def _ready(hub: Hub, check_id: str) -> SolverConnection:
    line = await hub.expect(check_id)
    await line.receive()
    return line


def _client(
    program: Path, streams: Sequence[dict[str, Any]]
) -> "subprocess.Popen[bytes]":
    client = subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert client.stdin
    client.stdin.write(json.dumps(streams).encode())
    client.stdin.close()
    client.stdin = None
    return client


def _memory_kb() -> float:
    """The most that this process ever had."""
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    for figure in figures(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0):
        print("  ".join(figure.cells()))
