"""A log that several processes append to is rotated, and no line is lost."""

import os
import subprocess
import sys
from pathlib import Path

from gpuyard.config.rotation import KEPT, RotatedLog

LIMIT = 20_000
LINES = 300
WRITE = """
import sys
from pathlib import Path
from gpuyard.config.rotation import RotatedLog
log = RotatedLog(Path(sys.argv[1]), 2, int(sys.argv[2]))
for number in range(int(sys.argv[3])):
    log.write(f"{sys.argv[4]} {number} {'x' * 40}\\n".encode())
"""


def parts(log: Path) -> list[Path]:
    """What there is of the log, the newest first."""
    older = [log.with_name(f"{log.name}.{number}") for number in range(1, KEPT + 1)]
    return [part for part in (log, *older) if part.exists()]


def test_no_line_of_several_processes_is_lost(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("ab") as output:
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITE, log, str(LIMIT), str(LINES), str(name)],
                stderr=output,
            )
            for name in range(4)
        ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    found = [line.split()[:2] for part in parts(log) for line in part.open()]
    expected = [[str(n), str(line)] for n in range(4) for line in range(LINES)]
    assert sorted(found) == sorted(expected)
    assert len(parts(log)) > 1
    assert all(part.stat().st_size <= LIMIT + 1000 for part in parts(log))


def test_only_the_newest_parts_stay(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    rotated = RotatedLog(log, output, 1000)
    for number in range(200):
        rotated.write(f"{number} {'x' * 50}\n".encode())
    os.close(output)
    assert len(parts(log)) == KEPT + 1
    assert len(list(tmp_path.iterdir())) == KEPT + 2  # and the file of the lock
    whole = [line for part in reversed(parts(log)) for line in part.open()]
    numbers = [int(line.split()[0]) for line in whole]
    assert numbers == list(range(numbers[0], 200))
    assert sum(part.stat().st_size for part in parts(log)) < (KEPT + 1) * 1100


def test_a_file_that_is_not_the_log_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "notes.txt"
    output = os.open(elsewhere, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    rotated = RotatedLog(tmp_path / "server.log", output, 10)
    for _ in range(5):
        rotated.write(b"a line of text\n")
    os.close(output)
    assert elsewhere.read_text() == "a line of text\n" * 5
