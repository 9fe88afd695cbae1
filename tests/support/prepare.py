"""Install what many tests share and what takes minutes, before any test's time runs.

    python -m tests.support.prepare

PyTorch's environments and a Debian image go into the user's cache. What cannot be
installed is named here; the tests that need it say more when they fail. The tests
themselves are compiled.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuyard import templates
from tests.support.bytecode import compile_tests
from tests.support.components import named_without
from tests.support.dockerd import can_run_docker, make_image
from tests.support.huggingface import make_trainer_python

# A component, what is installed for it, and how.
Step = tuple[str, str, Callable[[], object]]


def main() -> None:
    """Compile, then install everything at once: those steps mostly wait for the
    network.
    """
    compile_tests()
    without = named_without()
    steps: list[Step] = [
        ("pytorch", "Hugging Face's environment", make_trainer_python),
        ("pytorch", "the environment of the template nanogpt", make_nanogpt_python),
    ]
    if can_run_docker():
        steps.append(("docker", "an image of Debian with Python", make_image))
    wanted = [step for step in steps if step[0] not in without]
    with ThreadPoolExecutor(len(steps)) as pool:
        for _ in pool.map(run_step, wanted):
            pass


def run_step(step: Step) -> None:
    """Run a step, and say so if it fails."""
    component, what, install = step
    try:
        install()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"{component}: {what} cannot be installed: {error}\n")


def make_nanogpt_python() -> None:
    """Have the template's launcher make its environment."""
    program = "import launch; launch.environment_python()"
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "nanogpt"
        templates.write("nanogpt", template)
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=template,
            stdout=subprocess.DEVNULL,
            check=True,
        )


if __name__ == "__main__":
    main()
