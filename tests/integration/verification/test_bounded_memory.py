"""What hostile hands send may be of any size: in a process of its own, so that its
memory can be told.
"""

import sys

import pytest

from tests.support.programs import run_program

BIG = """
import base64, hashlib, resource, sys, zlib
from gpuyard.verification.answers import AnswersError, IncomingFile
from gpuyard.verification.protocol import Piece

kind, total = sys.argv[1], 1 << 30
block = b'{"a":"' + b"x" * ((1 << 20) - 6)
level, taken = (0 if kind == "big" else 9), 0
zipper = zlib.compressobj(level, wbits=31)
incoming = IncomingFile()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def pieces():
    ready = b""
    for number in range(total // len(block)):
        ready += zipper.compress(block)
        while len(ready) >= 600_000:
            yield ready[:600_000]
            ready = ready[600_000:]
    yield ready + zipper.flush()

try:
    for number, data in enumerate(pieces()):
        taken += len(data)
        incoming.add(Piece(part=number, of=32768, data=base64.b64encode(data).decode()))
    said = "taken"
except AnswersError as error:
    said = str(error)
peak_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(f"{said}|{peak_mb:.1f}|{taken}|{incoming.size}")
"""


@pytest.mark.parametrize("kind", ["big", "bomb"])
def test_a_file_of_a_gigabyte_is_refused_within_bounded_memory(kind: str) -> None:
    """Sent as it is, and as a bomb of one megabyte."""
    done = run_program([sys.executable, "-c", BIG, kind], timeout=100)
    said, peak_mb, taken, size = done.stdout.strip().split("|")
    assert "more than the 67,108,864 bytes" in said
    # Nothing more was unpacked than what showed that it is too much.
    assert int(size) <= (64 << 20) + (1 << 16)
    assert int(taken) < (70 << 20)
    # 64 MB unpacked lie in a file; what is held is a few pieces.
    assert float(peak_mb) < 20
