"""A real OpenAI-compatible model server on this machine's processor: `transformers
serve`.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.ports import free_port
from tests.support.wait import wait_until

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


# What the program `transformers` does, in a Python that may have imported it already.
_TRANSFORMERS = (
    "import sys; from transformers.cli.transformers import main; sys.exit(main())"
)


@contextmanager
def served(python: Path, model: Path, home: Path) -> Iterator[str]:
    """The address of a server of `model`, once it answers.

    It keeps what it needs in `home`, which is made.
    """
    port = free_port()
    (home / "hub").mkdir(parents=True)
    words = [
        python,
        "-c",
        _TRANSFORMERS,
        "serve",
        model,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    log = (home / "log").open("w")
    environment = {**os.environ, **OFFLINE, "HF_HOME": str(home)}
    process = subprocess.Popen(
        [*words, "--device", "cpu"], stdout=log, stderr=log, env=environment
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (home / "log").read_text()
        try:
            return httpx.get(f"{url}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_until(answers, 120, "the model server")
        yield f"{url}/v1"
    finally:
        process.terminate()
        process.wait(30)
        log.close()
