"""A task of SkyPilot (its YAML) as one of our jobs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gpuyard.foreign_files.skypilot_resources import (
    fields_of_resources,
    not_used,
    table_of,
)
from gpuyard.foreign_files.translation import Translation, pruned, refused

_FIELDS = frozenset(
    {
        "name",
        "workdir",
        "num_nodes",
        "resources",
        "envs",
        "secrets",
        "file_mounts",
        "setup",
        "run",
    }
)
_UNUSED = {
    "config": "the settings of gpuyard are in gpuyard.toml",
    "event_callback": "see the guide Notifications",
    "inputs": "gpuyard estimates no costs of transfers",
    "outputs": "gpuyard estimates no costs of transfers",
    "experimental": "the settings of gpuyard are in gpuyard.toml",
}
_REFUSED = {
    "service": "serve models with `gpuyard models`",
    "storage": "put the data into `gpuyard datasets`",
    "volumes": "put the data into `gpuyard datasets`, or use a workspace",
    "pool": "pools of machines stand in the settings of gpuyard: see `gpuyard pools`",
}
# Both texts are scripts of their own, so that neither can change how the other is read.
_PROGRAM = """\
export SKYPILOT_NODE_RANK="${NODE_RANK:-0}" SKYPILOT_NUM_NODES="${NNODES:-1}"
export SKYPILOT_NODE_IPS="${MASTER_ADDR:-127.0.0.1}" SKYPILOT_TASK_ID="$GPUYARD_JOB_ID"
bash -c "$1" setup || { code=$?; echo "setup left with $code" >&2; exit "$code"; }
exec bash -c "$2" run
"""


def is_task(document: object) -> bool:
    """Whether a document is a task of SkyPilot and no job file of ours."""
    if not isinstance(document, Mapping):
        return False
    fields = set(cast("Mapping[object, Any]", document))
    return bool(fields & {"run", "setup"}) and not fields & {
        "command",
        "script",
        "prompt",
        "jobs",
    }


def translate(
    document: Mapping[str, Any], label: str, folder: Path, shell: Mapping[str, str]
) -> Translation:
    """The job that `sky launch` would make of a task, in `folder`.

    `label` names the file in errors, `shell` are the variables here, from which `envs`
    without a value get theirs. InvalidInputError.
    """
    notes: list[str] = []
    for name in document:
        place = f"{label}: {name}"
        if name in _UNUSED:
            notes.append(f"{place} is not used: {_UNUSED[name]}")
        elif name in _REFUSED:
            raise refused(place, "is something that gpuyard cannot do", _REFUSED[name])
        elif name not in _FIELDS:
            fault = "is a field that gpuyard does not know"
            raise refused(place, fault, f"there are: {', '.join(sorted(_FIELDS))}")
    given = table_of(document.get("resources"), f"{label}: resources")
    notes += not_used(given, f"{label}: resources")
    (fields, resources) = fields_of_resources(given, f"{label}: resources")
    nodes = _nodes(document.get("num_nodes"), label)
    gpus = cast("dict[str, Any]", resources.get("gpus", {})).get("count", 0)
    environment = _environment(document.get("envs"), label, shell)
    if nodes > 1:
        resources["nodes"] = nodes
        notes.append(f"{label}: SKYPILOT_NODE_IPS names the first node only")
    body = {
        "name": _text(document, "name", label) or Path(label).stem,
        "command": _command(document, label),
        "workdir": str(folder / Path(_text(document, "workdir", label)).expanduser()),
        "environment": {**environment, "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus)},
        "secrets": _secrets(document.get("secrets"), label),
        "volumes": _volumes(document.get("file_mounts"), label, folder, fields),
        "resources": resources,
        **fields,
    }
    return Translation(pruned(body), notes)


def _text(document: Mapping[str, Any], name: str, label: str) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        remedy = "write it as text"
        if name == "workdir":
            remedy = "name a folder; `gpuyard run --git URL@REF` runs a repository"
        raise refused(f"{label}: {name}", "is no text", remedy)
    return value


def _command(document: Mapping[str, Any], label: str) -> list[str]:
    """Set-up and program in one command; the job fails if either does."""
    setup = _text(document, "setup", label)
    run = _text(document, "run", label)
    if not run.strip():
        raise refused(f"{label}: run", "is missing", "write the commands to run")
    return ["bash", "-c", _PROGRAM, "skypilot", setup, run]


def _nodes(value: object, label: str) -> int:
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise refused(f"{label}: num_nodes", f"is {value!r}", "write a number from 1")
    return value


def _environment(value: object, label: str, shell: Mapping[str, str]) -> dict[str, str]:
    environment: dict[str, str] = {}
    for name, given in table_of(value, f"{label}: envs").items():
        if given is None and name not in shell:
            remedy = f"write a value, or set it here: export {name}=…"
            raise refused(f"{label}: envs.{name}", "has no value", remedy)
        environment[name] = shell[name] if given is None else str(given)
    return environment


def _secrets(value: object, label: str) -> dict[str, str]:
    given = table_of(value, f"{label}: secrets")
    for name, secret in given.items():
        if secret is not None:
            remedy = f"remove the value, and store it: gpuyard secret set {name}"
            fault = "has its value in the file, where others can read it"
            raise refused(f"{label}: secrets.{name}", fault, remedy)
    return {name: name for name in given}


def _volumes(
    value: object, label: str, folder: Path, fields: Mapping[str, Any]
) -> dict[str, str]:
    """Folders here that the container of the job sees under another name."""
    volumes: dict[str, str] = {}
    for target, source in table_of(value, f"{label}: file_mounts").items():
        place = f"{label}: file_mounts.{target}"
        if not isinstance(source, str) or "://" in source:
            remedy = "put the data into `gpuyard datasets`, and name it with --dataset"
            raise refused(place, "is a bucket, which gpuyard does not mount", remedy)
        if "image" not in fields:
            remedy = f"let the program read {source} itself"
            fault = "needs a container: without resources.image_id nothing is mounted"
            raise refused(place, fault, remedy)
        volumes[target] = str(folder / Path(source).expanduser())
    return volumes
