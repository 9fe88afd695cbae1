"""Scripts: registered workers by name. They come with gpuyard, with an installed
package, or from the settings.

A package registers one by an entry point of the group `gpuyard.scripts`;
`[scripts.NAME]` says what a script needs.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gpuyard.domain import units
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.own_options import WorkerOrder
from gpuyard.domain.spec_values import SecretName
from gpuyard.domain.strict_model import StrictModel

ENTRY_POINTS = "gpuyard.scripts"
Seconds = Annotated[float, BeforeValidator(units.seconds), Field(ge=0)]
Gigabytes = Annotated[float, BeforeValidator(units.memory_gb), Field(gt=0)]


class ScriptSpec(StrictModel):
    """A script. `file`: its Python file, if it comes neither with gpuyard nor with a
    package. `python`: the interpreter of the environment that has its imports (default:
    gpuyard's own).

    `gpus` is 1, or 0 if it needs none; `memory_gb`: how much of its memory it takes.
    `args` are its arguments unless a task gives others. Expected times until they are
    measured: `boot_s` and `exit_s` for its start and end, `pace` seconds of work per
    second of media, and `item_s` per item that is not media or whose length is not
    known. A script that writes nothing and shows no progress for `silent_s` is stuck
    and is ended (0: never).
    `secrets`: see `JobSpec`. `joined`: it may also run on machines that have joined,
    which have its environment, the files of its items and the folder of its results at
    the same paths.
    """

    file: Path | None = None
    python: Path | None = None
    gpus: int = Field(default=1, ge=0, le=1)
    memory_gb: Gigabytes | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    boot_s: Seconds = 5.0
    exit_s: Seconds = 1.0
    pace: float = Field(default=0.075, gt=0)
    item_s: Seconds = 10.0
    silent_s: Seconds = 1200.0
    joined: bool = False
    secrets: dict[str, SecretName] = Field(default_factory=dict)


WORKER_FIELDS = {"file", "python", "silent_s", "joined"}
"""The fields that the job of a worker keeps."""

# A video takes Whisper 45 s (the seed document's figure, for ten minutes).
BUILT_IN: Mapping[str, ScriptSpec] = {
    "whisper_transcribe": ScriptSpec(item_s=45.0),
    "embed_768": ScriptSpec(boot_s=3.0, item_s=1.0),
    "embed_1536": ScriptSpec(gpus=0, boot_s=0.5, item_s=1.0),
    "extract_keyframes": ScriptSpec(gpus=0, boot_s=0.5, pace=0.02, item_s=12.0),
}
# The script for a task's type, if the task names no script. `process` may be anything.
BY_TYPE: Mapping[str, str] = {"transcribe": "whisper_transcribe", "embed": "embed_768"}


_NO_TIMES: Mapping[str, float] = MappingProxyType({})
# What these load, by the name that boot times are known by.
_LOADED: Mapping[str, str] = {
    "whisper_transcribe": "whisper:small.en",
    "embed_768": "sentence-transformers",
}


class Scripts:
    """All scripts.

    `configured` come from the settings and replace others of the same name.
    `boot_times`: how long they take to load, by a script's name or by what it loads.
    """

    def __init__(
        self,
        configured: Mapping[str, ScriptSpec],
        boot_times: Mapping[str, float] = _NO_TIMES,
    ) -> None:
        packaged = {
            entry.name: ScriptSpec() for entry in entry_points(group=ENTRY_POINTS)
        }
        found: dict[str, ScriptSpec] = {**packaged, **BUILT_IN, **configured}
        for name, script in found.items():
            loaded = _LOADED.get(name, name)
            boot_s = boot_times.get(name, boot_times.get(loaded, script.boot_s))
            found[name] = script.model_copy(update={"boot_s": boot_s})
        self._known = found

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __getitem__(self, name: str) -> ScriptSpec:
        return self._known[name]

    def boot_times(self) -> dict[str, float]:
        """How long each script that uses a GPU takes to load, by what it loads or by
        its name.
        """
        return {
            _LOADED.get(name, name): script.boot_s
            for name, script in self._known.items()
            if script.gpus
        }

    def named(self, name: str, field: str = "script") -> str:
        """The script for a script's name or a task's type; InvalidInputError lists the
        known scripts.
        """
        found = BY_TYPE.get(name, name)
        if found not in self._known:
            known = ", ".join(sorted(self._known))
            raise InvalidInputError.of(
                field,
                f"there is no script {name!r}",
                f"use one of {known}; or register it",
            )
        return found


def script_folder(spec: Mapping[str, Any]) -> Path | None:
    """The folder with the file of the script that a job or a worker runs; None if its
    spec names no such file: the script comes with gpuyard or with a package.
    """
    if not spec.get("script"):
        return None
    order = WorkerOrder.read(spec.get("provider_options", {}))
    file: str | None = order.settings.get("file")
    return Path(file).parent if file and Path(file).is_absolute() else None


def find_result(log: bytes, task_id: str) -> dict[str, Any] | None:
    """The result that the worker of a task has written to the end of this log; None if
    there is none.

    What the script itself wrote may stand after it, or before it in the same line.
    """
    beginning = f'{{"task_id": {json.dumps(task_id)}, "output": '.encode()
    for line in reversed(log.splitlines()):
        _, found, rest = line.partition(beginning)
        if not found:
            continue
        with suppress(ValueError, RecursionError):
            return json.loads(beginning + rest)
    return None
