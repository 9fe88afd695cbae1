"""`make sbom` and `make audit`: what gpuyard is installed with, and what is known to be
wrong with it. uv does both, from a lock of its own that is made for the moment.

Usage: supply.py sbom FILE | supply.py audit
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts.licences import UNKNOWN, known_licences  # noqa: E402

UV = ROOT / ".venv/bin/uv"
SERVICE = "https://api.osv.dev"
# These have no lock: what PyTorch has to be depends on the GPU.
UNLOCKED = {"whisper", "embed"}
# How uv says that nobody answered.
UNANSWERED = ("error sending request", "Request failed after", "Failed to fetch")


class SupplyError(Exception):
    """It cannot be done; the message is for people."""


def main(arguments: list[str]) -> int:
    """The exit status: 1 for known faults, 2 if it could not be done."""
    try:
        if arguments[:1] == ["sbom"] and len(arguments) == 2:
            return sbom(Path(arguments[1]))
        if arguments == ["audit"]:
            return audit()
    except SupplyError as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 2
    print(__doc__, file=sys.stderr)
    return 2


def sbom(file: Path) -> int:
    """Write the software bill of materials of gpuyard and its extras, as CycloneDX."""
    with _project() as folder:
        leave = ("--no-extra", "dev", "--no-extra", "docs")
        form = ("--format", "cyclonedx1.5", "--preview-features", "sbom-export")
        done = _uv("export", "--frozen", "--all-extras", *leave, *form, folder=folder)
    document = json.loads(done)
    licences = known_licences()
    for component in document["components"]:
        pin = (component["name"], component["version"])
        if licences.get(pin, UNKNOWN) != UNKNOWN:
            component["licenses"] = [{"expression": licences[pin]}]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{file}: {len(document['components'])} packages")
    return 0


def audit() -> int:
    """Ask the service for known faults of all locked packages, and print them."""
    with _project() as folder:
        return audit_lock(folder)


def audit_lock(folder: Path, service: str = SERVICE) -> int:
    """Ask for the packages of the lock of uv in `folder`."""
    command = [UV, "audit", "--frozen", "--preview-features", "audit-command"]
    command += ["--service-url", service]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if _unanswered(done.stderr):
        raise SupplyError(
            f"nothing was checked, because {service} cannot be reached from here"
        )
    print(done.stdout + done.stderr, end="")
    return done.returncode


@contextmanager
def _project() -> Generator[Path]:
    """A folder with the dependencies of gpuyard, and uv's lock of the versions of
    `requirements-dev.lock`.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        extra: wanted
        for extra, wanted in project["optional-dependencies"].items()
        if extra not in UNLOCKED
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyproject.toml").write_text(
            _section("project", {key: project[key] for key in _PROJECT_KEYS})
            + _section("project.optional-dependencies", extras)
            + _section("tool.uv", {"constraint-dependencies": _locked()})
        )
        _uv("lock", folder=Path(folder))
        yield Path(folder)


_PROJECT_KEYS = ("name", "version", "requires-python", "dependencies")


def _section(name: str, values: dict[str, Any]) -> str:
    """A table of TOML with strings and lists of them, which look as in JSON."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def _locked() -> list[str]:
    lines = (ROOT / "requirements-dev.lock").read_text().splitlines()
    pins = [line.rstrip(" \\") for line in lines if not line.startswith((" ", "#"))]
    return [pin for pin in pins if "==" in pin]


def _uv(*arguments: str, folder: Path) -> str:
    """What a command of uv prints; SupplyError if it fails."""
    command = [UV, "--quiet", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if _unanswered(done.stderr):
        raise SupplyError("the package index cannot be reached from here")
    if done.returncode:
        raise SupplyError(f"uv {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def _unanswered(said: str) -> bool:
    return any(words in said for words in UNANSWERED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
