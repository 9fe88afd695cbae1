"""A file of lines that is replaced when the disk is full."""

import subprocess
import sys
from pathlib import Path

# Python ignores SIGXFSZ, so a write beyond the limit is cut short, as on a full disk.
FULL = """
import resource, sys
from pathlib import Path
from gpuyard.node.line_file import LineFile
file = LineFile(Path(sys.argv[1]))
file.append(b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
try:
    file.replace([b"new", 200 * b"x"])
except OSError:
    assert file.lines() == [b"old"]
    file.append(b"goes on")
else:
    raise AssertionError("there was room for it")
"""


def test_a_copy_that_finds_no_room_takes_none_and_changes_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lines"
    subprocess.run([sys.executable, "-c", FULL, str(path)], check=True, timeout=60)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "old\ngoes on\n"
