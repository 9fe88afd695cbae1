"""What a program logs to event files is reported while it runs, and to its end."""

from pathlib import Path

from gpuyard.domain import wire
from tests.support.node import Node, make_node, wait_for

FILE = Path(__file__).parents[2] / "unit" / "insight" / "event_files" / "tensorboardX"
# It logs a half, waits, logs the rest and ends at once.
PROGRAM = """
import os, pathlib, sys, time
data = pathlib.Path(sys.argv[1]).read_bytes()
folder = pathlib.Path("runs", "now")
folder.mkdir(parents=True)
name = f"events.out.tfevents.{int(time.time())}.host.{os.getpid()}.0"
(folder / name).write_bytes(data[:200])
while not pathlib.Path("go").exists():
    time.sleep(0.01)
(folder / name).write_bytes(data)
"""


def points(node: Node, attempt: str) -> list[tuple[str, int, int | None, float]]:
    seen = node.sink.of(wire.ProgressSeen, attempt)
    return [(p.name, p.n, p.step, p.value) for each in seen for p in each.points]


def test_scalars_of_a_program_that_prints_nothing_are_its_curves() -> None:
    with make_node() as node:
        attempt = node.start(PROGRAM, str(FILE))
        wait_for(lambda: points(node, attempt), "the first scalars")
        assert points(node, attempt)[0] == ("tensorboard/train/loss", 0, 0, 1.0)
        (node.work / "go").touch()
        assert node.ended(attempt).exit_code == 0
        found = points(node, attempt)
        assert [value for *_, value in found] == [1.0, 0.5, found[2][3], 0.125]
        assert [number for _, number, *_ in found] == [0, 1, 2, 3]
        last = node.sink.of(wire.ProgressSeen, attempt)[-1].progress
        assert (last["step"], last["metrics"]) == (3, {"tensorboard/train/loss": 0.125})
