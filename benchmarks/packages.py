"""What packages add to a job whose environment is there already: the same job with and
without, from the call to its end.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, alternate
from gpuyard.client.sync import Client
from tests.support.instance import make_instance

GROUP = "packages"
_ROUNDS = 30
_COMMAND = ["true"]


def measure(scale: float) -> Iterator[Figure]:
    """The time of a job with packages, and as its floor that of one without."""
    rounds = max(int(_ROUNDS * scale), 3)
    with make_instance() as instance, tempfile.TemporaryDirectory() as name:
        instance.ok("up")
        file = Path(name) / "requirements.txt"
        file.write_text("")
        with Client(instance.address()) as client:
            _milliseconds(client, packages=str(file))
            (ours, floors) = alternate(
                rounds,
                lambda: _milliseconds(client, packages=str(file)),
                lambda: _milliseconds(client),
            )
    pairs = zip(ours, floors, strict=True)
    extra = [max(with_them - without, 0.01) for with_them, without in pairs]
    yield Figure(
        GROUP,
        "a job whose packages are installed already",
        ours,
        "ms",
        floors=floors,
        floor_name="the same job without packages",
    )
    words = "what its packages add"
    yield Figure(GROUP, words, extra, "ms", 100, absolute=True)


def _milliseconds(client: Client, **fields: Any) -> float:
    began = time.perf_counter()
    job = client.run(_COMMAND, **fields)
    ended = job.wait()
    assert ended.state == "completed", ended
    return 1000 * (time.perf_counter() - began)
