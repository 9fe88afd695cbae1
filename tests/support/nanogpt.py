"""The Python with PyTorch that the launcher of the template nanogpt makes: it is kept in
the user's cache from one test run to the next.
"""

import subprocess
import sys
from pathlib import Path

from tests.support.components import require
from tests.support.forkserver import start_fork_server


def torch_python(template: Path) -> str:
    """The interpreter; `template` is the folder of the template."""
    program = "import launch; print(launch.environment_python())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=template,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stderr.strip().splitlines()
    require("pytorch", done.returncode == 0, said[-1] if said else "")
    return done.stdout.splitlines()[-1]


def fast_torch_python(python: str) -> str:
    """The same, with PyTorch imported: its scripts are forks of a fork server."""
    imports = (
        "torch",
        "torch.distributed",
        "torch._dynamo",
        "torch.utils.tensorboard",
    )
    return start_fork_server(python, imports, programs=True)
