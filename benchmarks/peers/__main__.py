"""`python -m benchmarks.peers [NAME…]`: no-op jobs on gpuyard and on its peers, and
what each promises of them.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import jobs  # noqa: E402
from benchmarks.bench import noop, scratch  # noqa: E402
from benchmarks.figures import Figure, alternate, plain  # noqa: E402
from benchmarks.page import command_line, measured_by, store_figures  # noqa: E402
from tests.support.components import COMPONENTS  # noqa: E402
from tests.support.postgres import PostgresServer, binaries  # noqa: E402

ENVIRONMENT = HERE.parent / ".venv-peers"
COUNT = 2000


@dataclass(frozen=True)
class Peer:
    """`target`: gpuyard's least ratio to it; `keeps`: what of a queued job survives the
    system's own crash.
    """

    name: str
    keeps: str
    target: float = 1.0


PEERS = (
    Peer(
        "huey",
        "SQLite, every commit synced; a task that is running when its worker dies is"
        " lost",
        1.5,
    ),
    Peer(
        "procrastinate",
        "PostgreSQL, every commit synced; a stalled job must be found and retried by"
        " hand",
        4,
    ),
    Peer("tsp", "nothing: the queue is memory of its server"),
    Peer("ray", "nothing: tasks are memory of their driver"),
    Peer("dask", "nothing: tasks are memory of the scheduler"),
    Peer(
        "hyperqueue",
        "nothing: the journal is off, its Python package cannot switch it on",
    ),
)


def install() -> None:
    """The peers' environment, and task-spooler; made once for each list of
    requirements.
    """
    wanted = HERE / "requirements.txt"
    made = ENVIRONMENT / "made"
    if not made.exists() or made.read_text() != wanted.read_text():
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run(
            [
                ENVIRONMENT / "bin/pip",
                "install",
                "-q",
                "--require-hashes",
                "-r",
                wanted,
            ],
            check=True,
        )
        shutil.copy(wanted, made)
    if not shutil.which("tsp"):
        subprocess.run([ROOT / "scripts/apt-install.sh", "task-spooler"], check=False)


def measure(peer: Peer, count: int, rounds: int, limit_s: float) -> Figure:
    """gpuyard and the peer in turns, both on the same count."""
    ours, theirs = alternate(
        rounds,
        lambda: count / jobs.ours(noop(), count),
        lambda: count / seconds(peer, count, limit_s),
    )
    return Figure(
        "peers",
        f"{count:,} no-op jobs on {jobs.SLOTS} slots",
        ours,
        "jobs/s",
        peer.target,
        theirs,
        f"{peer.name} ({peer.keeps})",
        least=True,
    )


class CannotRunError(Exception):
    """A peer cannot run here."""


def seconds(peer: Peer, count: int, limit_s: float) -> float:
    """How long `peer` takes; CannotRunError, after its own words on stderr."""
    with scratch() as folder, peer_environment(peer) as more:
        command = [ENVIRONMENT / "bin/python", HERE / f"run_{peer.name}.py"]
        told = {
            "PEER_PROGRAM": noop(),
            "PEER_COUNT": str(count),
            "PEER_FOLDER": str(folder),
            **more,
        }
        # Messages of a peer's own go to stderr, so that stdout holds the figure alone.
        with subprocess.Popen(
            command,
            cwd=HERE,
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said = ""
    if process.returncode or not said:
        raise CannotRunError(f"{peer.name} left with {process.returncode}")
    return float(json.loads(said.strip().splitlines()[-1])["seconds"])


@contextmanager
def peer_environment(peer: Peer) -> Iterator[dict[str, str]]:
    """The environment variables of `peer`'s run, and what must be there while it
    runs.
    """
    if peer.name != "procrastinate":
        yield {}
        return
    where = binaries()
    if where is None:
        sys.exit(f"benchmarks: PostgreSQL is missing; {COMPONENTS['postgresql']}")
    server = PostgresServer(where, durable=True)
    try:
        server.start()
        yield {"PEER_DATABASE": server.create()}
    finally:
        server.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__
    )
    parser.add_argument(
        "peers",
        nargs="*",
        metavar="NAME",
        help=f"default: {' '.join(peer.name for peer in PEERS)}",
    )
    parser.add_argument("--count", type=int, default=COUNT, help="how many jobs")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer")
    parser.add_argument(
        "--limit",
        type=float,
        default=600,
        help="seconds after which a peer is given up",
    )
    parser.add_argument(
        "--write", action="store_true", help="put the figures into docs/benchmarks.md"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    if unknown := set(arguments.peers) - {peer.name for peer in PEERS}:
        parser.error(f"there is no peer {', '.join(sorted(unknown))}")
    if arguments.write and arguments.count != COUNT:
        parser.error("--write: only full counts go into the page; leave out --count")
    install()
    measured = measured_by(command_line("bench-peers", sys.argv[1:]))
    figures: list[Figure] = []
    for peer in PEERS:
        if arguments.peers and peer.name not in arguments.peers:
            continue
        try:
            figure = measure(peer, arguments.count, arguments.rounds, arguments.limit)
        except CannotRunError as error:
            print(error, file=sys.stderr)
            continue
        figures.append(figure)
        print("  ".join(figure.cells()), file=sys.stderr, flush=True)
        if arguments.write:
            store_figures(f"peers.{peer.name}", measured, [figure])
    if arguments.json:
        print(json.dumps([figure.to_json() for figure in figures]))
    else:
        print(f"{measured}\n\n{plain(figures)}")


if __name__ == "__main__":
    main()
