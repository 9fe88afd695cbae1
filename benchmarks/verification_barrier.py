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
from gpuyard.verification.hub import Hub, SolverConnection, release

GROUP = "verification"
CLIENTS = 2
# A client process: its connections wait for their seeds; prints when each came, on the
# clock that all processes share.
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
            stream["host"], stream["port"], ssl=context, server_hostname="gpuyard-verify")
        writer.write(b'{"type":"ready"}\\n')
    line = await reader.readline()
    seeds.append((time.monotonic(), json.loads(line)["seed"]))
    if len(seeds) == everybody:
        complete.set()
    await complete.wait()
    writer.write(b'{"type":"failed","reason":"heard"}\\n')
    await reader.readline()

async def main():
    global complete
    streams, places, seeds, complete = json.load(sys.stdin), asyncio.Semaphore(32), [], asyncio.Event()
    await asyncio.gather(*(one(stream, places, seeds, len(streams)) for stream in streams))
    json.dump(seeds, sys.stdout)

uvloop.run(main())
"""


def figures(scale: float) -> Iterator[Figure]:
    """The spread in two ways, and what a connection costs."""
    count = scaled(1000, scale, 20)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "client.py"
        program.write_text(CLIENT)
        rounds = [uvloop.run(_barrier(program, count)) for _ in range(3)]
    # Others on this machine can only make it slower; memory is new in the first round
    # only.
    found = {name: min(one[name] for one in rounds) for name in rounds[0]} | {
        "memory_kb": rounds[0]["memory_kb"]
    }
    name = f"{count:,} executors released"
    yield Figure(
        GROUP,
        f"{name}, from the first seed that arrives to the last",
        found["heard_ms"],
        "ms",
        250,
    )
    yield Figure(
        GROUP,
        f"{name}, from the first seed sent to the last that arrives",
        found["whole_ms"],
        "ms",
        250,
    )
    yield Figure(
        GROUP,
        f"{name}, from the first seed sent to the last sent",
        found["sent_ms"],
        "ms",
    )
    yield Figure(
        GROUP,
        "processor time of the hub per executor that connects",
        found["connect_ms"],
        "ms",
        2,
    )
    yield Figure(GROUP, "memory of the hub per executor", found["memory_kb"], "kB", 100)


async def _barrier(program: Path, count: int) -> dict[str, float]:
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
            hub.dismiss(line.check_id)
        outputs = await asyncio.gather(
            *(asyncio.to_thread(client.communicate) for client in clients)
        )
    heard: list[tuple[float, int]] = [
        (at, seed) for output, _ in outputs for at, seed in json.loads(output)
    ]
    assert sorted(seed for _, seed in heard) == list(range(count))
    first = min(heard)[0]
    last = max(heard)[0]
    began = min(sent.values())
    return {
        "heard_ms": (last - first) * 1000,
        "whole_ms": (last - began) * 1000,
        "sent_ms": (max(sent.values()) - began) * 1000,
        "connect_ms": worked_s / count * 1000,
        "memory_kb": memory / count,
    }


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
