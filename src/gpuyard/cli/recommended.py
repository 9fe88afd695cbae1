"""What `gpuyard run` does with the needs of a program that its owner has not described:
it asks for what the program needs, says so, and asks back where that costs much.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gpuyard.cli.program_files import own_modules, program_path
from gpuyard.domain.errors import GpuyardError, InvalidInputError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client

# Who names one of these has said what the job needs, or where it is.
_SAID = ("tier", "image", "provider", "provider_options", "array")
_SAID_OF_RESOURCES = ("gpus", "memory_gb", "nodes")
# Others need no GPU, or nothing that is known; they are not read any further.
_LIBRARIES = re.compile(
    r"\b(torch|tensorflow|keras|jax|flax|transformers|lightning|pytorch_lightning"
    r"|accelerate|deepspeed|diffusers|timm|trl|peft|ultralytics|fastai)\b"
)
_READ = 200_000
Confirm = Callable[[str], bool]


def _says_nothing(body: Mapping[str, Any]) -> bool:
    """Whether the owner of a job has left open how many GPUs and how much memory."""
    resources = body.get("resources", {})
    named = [name for name in _SAID if name in body]
    return not named and not any(name in resources for name in _SAID_OF_RESOURCES)


def may_be_recommended(body: Mapping[str, Any]) -> bool:
    """Whether it is worth while to read the program of a job: its owner has not said
    what it needs, and it or a module that it imports mentions a library with models.
    """
    if not _says_nothing(body):
        return False
    path = program_path(list(body.get("command", ())), _folder(body))
    if path is None:
        return False
    text = _beginning(path)
    if _LIBRARIES.search(text):
        return True
    own = own_modules(text, path.parent)
    return any(_LIBRARIES.search(_beginning(each)) for each in own)


def _folder(body: Mapping[str, Any]) -> Path:
    return Path(body.get("workdir") or ".")


def _beginning(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_READ)
    except (OSError, UnicodeDecodeError):
        return ""


def recommended(body: Mapping[str, Any], client: "Client") -> dict[str, Any] | None:
    """The recommendation for the program of a job, as `gpuyard recommend --json` gives
    it; None if its owner has said what it needs, or if its needs are not known.
    """
    found = _read(body, client)
    return found if found and _is_known(found) else None


def _read(body: Mapping[str, Any], client: "Client") -> dict[str, Any] | None:
    """What was read off the program of a job, corrected by what was measured; None if
    its owner has said what it needs, or if it cannot be read.
    """
    if not may_be_recommended(body):
        return None
    from gpuyard.cli.recommend import recommendation_for

    project = body.get("project")
    try:
        return recommendation_for(
            body["command"], _folder(body), client=client, project=project
        )
    except InvalidInputError:
        return None


def _is_known(found: Mapping[str, Any]) -> bool:
    needs = found["needs"]
    is_known = needs["gpus"] and needs["gpu_memory_gb"]
    return bool(is_known) and found["confidence"] != "low"


def with_needs(body: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The job with the needs of a recommendation, and with what was read off its
    program.
    """
    needs = found["needs"]
    gpus = {"count": needs["gpus"], "memory_gb": needs["gpu_memory_gb"]}
    resources = {**body.get("resources", {}), "gpus": gpus}
    if needs["nodes"] > 1:
        resources["nodes"] = needs["nodes"]
    return {**_with_program(body, found), "resources": resources}


def _with_program(body: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The job with what was read off its program: so what is measured of it corrects
    later recommendations.
    """
    return {**body, "program_needs": found["program_needs"]}


def apply(
    client: "Client",
    body: dict[str, Any],
    confirm_cost: float,
    *,
    sure: bool,
    confirm: Confirm,
) -> dict[str, Any]:
    """The job, with the needs of its program if they are known and some place has that;
    a line says so. typer.Abort if a person does not want it at its price.
    """
    found = _read(body, client)
    if found is None:
        return body
    if not _is_known(found):
        return _with_program(body, found)
    wanted = with_needs(body, found)
    place = _best_place(client, wanted)
    if place is None:
        typer.echo(
            f"gpuyard: note: {_needs(found)}, which no place here has; it is submitted"
            " without",
            err=True,
        )
        return _with_program(body, found)
    typer.echo(
        f"gpuyard: note: {_needs(found)}, and gets that: {_reason(found)}; --gpus says"
        " otherwise",
        err=True,
    )
    cost = _cost(found, place)
    is_dear = cost is not None and cost > confirm_cost
    if is_dear and not sure and not confirm(f"It may cost {cost:.2f}. Run it?"):
        raise typer.Abort
    return wanted


def ask(question: str) -> bool:
    """Ask a person; who is no terminal has not said no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    return typer.confirm(question, default=True, err=True)


def _best_place(client: "Client", body: Mapping[str, Any]) -> dict[str, Any] | None:
    from gpuyard.client import calls

    try:
        places = client.call(calls.estimate(body, None))["items"]
    except GpuyardError:
        return None
    return next((place for place in places if place["suits"]), None)


def _cost(found: Mapping[str, Any], place: Mapping[str, Any]) -> float | None:
    """What the whole training costs at a place, if the program says how long it is."""
    hours = [row["hours"] for row in found["tiers"] if row["id"] == found["tier"]]
    if not hours or hours[0] is None or place["per_hour"] is None:
        return None
    return float(hours[0] * place["per_hour"])


def _needs(found: Mapping[str, Any]) -> str:
    needs = found["needs"]
    count = "1 GPU" if needs["gpus"] == 1 else f"{needs['gpus']} GPUs"
    nodes = f" on each of {needs['nodes']} nodes" if needs["nodes"] > 1 else ""
    return f"{found['entry']} needs {count} with {needs['gpu_memory_gb']} GB{nodes}"


def _reason(found: Mapping[str, Any]) -> str:
    """The line that sums up the memory."""
    sums = [line["says"] for line in found["lines"] if line["path"] is None]
    return sums[-1] if sums else f"confidence {found['confidence']}"
