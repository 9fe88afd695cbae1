"""The first line of the README: gpuyard as a tool of its own, from a checkout."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.instance import make_instance

ROOT = Path(__file__).parents[2]


def test_it_is_installed_as_a_tool_and_runs_a_job(tmp_path: Path) -> None:
    tools = {
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
    }
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "tool", "install", "--quiet", "--python", sys.executable, ".[top]"]
    installed = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | tools,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert installed.returncode == 0, installed.stderr
    with make_instance() as instance:
        environment = dict(instance.environment)
        # What one program of it has compiled, the others need not compile again.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(
            [tmp_path / "bin" / "gpuyard", "run", "--", "echo", "it works"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stdout) == (0, "it works\n"), done.stderr
        added = subprocess.run(
            [tmp_path / "bin" / "gpuyard", "datasets", "add", "tiny-shakespeare"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert added.returncode == 0, added.stderr
        assert "default/tiny-shakespeare@1: 1 file, 1.12 MB" in added.stdout
