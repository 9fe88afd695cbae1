"""Instances whose executors are verified: the sections of their settings, and what
`gpuyard verify` says of them.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.support.instance import TestInstance

CHEATER = Path(__file__).parents[1] / "programs" / "cheater.py"
# So that more of them than a small machine has cores stand behind one barrier.
_TOP = {"cpus": 0.2}


def toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, dict):
        fields: dict[str, Any] = value
        return (
            "{ "
            + ", ".join(
                f"{json.dumps(key)} = {toml(one)}" for key, one in fields.items()
            )
            + " }"
        )
    return json.dumps(value)


def section(name: str, **fields: object) -> str:
    """[name] with its fields."""
    return f"[{name}]\n" + "".join(
        f"{key} = {toml(value)}\n" for key, value in fields.items()
    )


def executor(name: str, gpu_class: str, **fields: object) -> str:
    """An executor of the settings."""
    return section(
        f"verification.executors.{name}", **{"class": gpu_class, **_TOP, **fields}
    )


def configure(instance: TestInstance, *sections: str) -> None:
    """Write these sections as the instance's settings."""
    instance.home.create()
    instance.home.settings.write_text("\n".join(sections))


def verify(
    instance: TestInstance, *words: str, code: int | None = 0, timeout: float = 100
) -> dict[str, dict[str, Any]]:
    """`gpuyard verify run WORDS`: what came of each, by its name."""
    done = instance.run("verify", "run", *words, "--json", timeout=timeout)
    assert code is None or done.returncode == code, (
        done.returncode,
        done.stdout,
        done.stderr,
    )
    report = json.loads(done.stdout)
    assert report["faults"] == []
    return {item["executor"]: item for item in report["items"]}


def outcomes(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Executor → outcome, with the reason of one that did not pass in front of whoever
    reads a failure.
    """
    return {name: item["outcome"] for name, item in found.items()}


def cheating(
    instance: TestInstance, how: str, python: str | Path = sys.executable
) -> str:
    """An executor's `python` that runs the solver in another way (see the program);
    what it remembers lies beside.
    """
    path = instance.work / f"python-{how}"
    words = [str(python), str(CHEATER), how, str(instance.work / f"{how}.memory")]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)
    return str(path)
