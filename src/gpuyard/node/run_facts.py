"""With what an attempt runs: the host, the driver of its GPUs, its Python and its
packages. They become part of its record.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuyard import __version__
from gpuyard.domain import wire
from gpuyard.node.package_environments import PackageEnvironment
from gpuyard.storage.untrusted import open_beneath

_VERSIONS = ("version", "version_info")
_MOST_BYTES = 32_000


def has_record(start: wire.StartAttempt) -> bool:
    """Whether facts of an attempt are worth their place: those of a program that was
    submitted with its code or its packages, and can be repeated.
    """
    return bool(start.code or start.packages)


def run_facts(
    start: wire.StartAttempt, node: str, gpus: Sequence[wire.GpuStatus]
) -> dict[str, str]:
    """What is known of the host; `gpus` are all that it has."""
    own = [gpu for gpu in gpus if gpu.uuid in start.gpu_uuids]
    facts = {
        "host": node,
        "gpuyard": __version__,
        "gpus": ", ".join(gpu.name for gpu in own),
        "driver": own[0].driver if own else "",
    }
    return {name: value[:256] for name, value in facts.items() if value}


def python_facts(
    command: Sequence[str], environment: Mapping[str, str], workdir: Path
) -> dict[str, str]:
    """Which Python a command runs, if its first word is one, or a program beside one.
    Do not ask for a job of another account: it looks at files.
    """
    program: str | None = command[0]
    if "/" not in command[0]:
        program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        return {}
    place = workdir / program
    settings = place.parent.parent / "pyvenv.cfg"
    version = _version(settings)
    is_python = place.name.startswith("python")
    if not is_python and not version:
        return {}
    real = os.path.realpath(place) if is_python else str(place)
    # The name of a file need not be UTF-8, and a message must.
    text = os.fsencode(f"{version} {real}").decode(errors="replace")
    return {"python": text.strip()[:256]}


def package_facts(
    packages: PackageEnvironment | None, owner: int | None
) -> dict[str, str]:
    """Which packages are installed, one a line; `owner` is the account of the job."""
    if packages is None or not packages.is_complete:
        return {}
    try:
        with open_beneath(packages.folder, packages.list_name, owner=owner) as file:
            found = file.read(_MOST_BYTES)
    except OSError:
        return {}
    return {"packages": found.decode(errors="replace").strip()}


def _version(settings: Path) -> str:
    try:
        lines = settings.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    for line in lines:
        (name, _, value) = line.partition("=")
        if name.strip() in _VERSIONS:
            return value.strip()
    return ""
