"""What it costs a request that a standby server forwards it to the leader.

`python -m benchmarks.decisions.forwarding` serves a trivial application, and the
forwarding middleware in front of a second one, each in a process of its own. It asks
both in turns and prints the latencies.
"""

import multiprocessing
import socket
import statistics
import time
from types import SimpleNamespace
from typing import Any, cast

import httpx
import uvicorn

from gpuyard.server.app_state import AppState
from gpuyard.server.forwarding import Forwarding

ROUNDS = 10
REQUESTS_PER_ROUND = 100
PATH = "/api/v1/gpus"


async def leader(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer every request with an empty JSON listing."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b'{"items": [], "next": null}'})


def serve_leader(listener: socket.socket) -> None:
    """Serve the application itself."""
    serve(leader, listener)


def serve_standby(listener: socket.socket, leader_url: str) -> None:
    """Serve a standby, whose election says that the other server leads."""
    election = SimpleNamespace(leader=SimpleNamespace(url=leader_url))
    state = SimpleNamespace(
        leads=False, url="", election=election, admits=lambda _token: True
    )
    serve(Forwarding(leader, cast(AppState, state)), listener)


def serve(app: Any, listener: socket.socket) -> None:
    """Serve an application as the server does."""
    config = uvicorn.Config(app, log_level="error", lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


def listen() -> tuple[socket.socket, str]:
    """A listening socket and its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def measure(client: httpx.Client, url: str) -> list[float]:
    """Seconds that each request of a round took."""
    taken: list[float] = []
    for _ in range(REQUESTS_PER_ROUND):
        began = time.perf_counter()
        client.get(url + PATH).raise_for_status()
        taken.append(time.perf_counter() - began)
    return taken


def describe(name: str, rounds: list[list[float]]) -> str:
    """The median of all requests, the best round's, and the 99th percentile."""
    every = [seconds for one in rounds for seconds in one]
    median = statistics.median(every) * 1e3
    best = min(statistics.median(one) for one in rounds) * 1e3
    p99 = statistics.quantiles(every, n=100)[98] * 1e3
    return f"{name:10} p50 {median:.2f} ms (best round {best:.2f})   p99 {p99:.2f} ms"


def main() -> None:
    """Measure both ways in turns and print the figures."""
    context = multiprocessing.get_context("fork")
    direct_listener, direct_url = listen()
    standby_listener, standby_url = listen()
    servers = [
        context.Process(target=serve_leader, args=(direct_listener,)),
        context.Process(target=serve_standby, args=(standby_listener, direct_url)),
    ]
    for server in servers:
        server.start()
    rounds: dict[str, list[list[float]]] = {direct_url: [], standby_url: []}
    try:
        with httpx.Client(timeout=30) as client:
            for url in rounds:
                measure(client, url)
            for _ in range(ROUNDS):
                for url, measured in rounds.items():
                    measured.append(measure(client, url))
    finally:
        for server in servers:
            server.terminate()
    print(describe("leader", rounds[direct_url]))
    print(describe("forwarded", rounds[standby_url]))


if __name__ == "__main__":
    main()
