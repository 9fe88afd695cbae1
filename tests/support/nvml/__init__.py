"""GPUs for machines that have none: a C library in NVML's place and a script in
nvidia-smi's, over one state file.

The unmodified nvidia-ml-py loads the library by name when first used, so
`FakeGpus.env()` must be in the environment before the process that reads GPUs starts.
`nvml_shim.c` says what the file may hold and how the library behaves.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.components import require

STATE_VARIABLE = "FAKE_NVML_STATE"
LIBRARY = "libnvidia-ml.so.1"

Value = str | int | float | None

_HERE = Path(__file__).parent
_KEYS = {
    "name",
    "memory_mb",
    "memory_used_mb",
    "cc",
    "temperature",
    "utilization",
    "power_w",
    "energy_j",
    "ecc",
    "ecc_corrected",
    "remapped_rows",
    "mig_mode",
    "lost",
    "slowdown",
    "recovery",
    "instance",
    "compute_instance",
    "minor",
    "slowed_by",
}


def build(directory: Path) -> Path:
    """Compile the library into `directory` and return its path."""
    gcc = shutil.which("gcc")
    require("compiler", gcc is not None)
    assert gcc is not None
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / LIBRARY
    source = _HERE / "nvml_shim.c"
    subprocess.run(
        [
            gcc,
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Werror",
            # A process that has it loaded finds it by this name, wherever it lies.
            f"-Wl,-soname,{library.name}",
            "-o",
            library,
            source,
            "-lpthread",
        ],
        check=True,
    )
    return library


def write_script(directory: Path, body: str, interpreter: str = "/bin/sh") -> Path:
    """An executable named `nvidia-smi` in `directory`, to be put on PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "nvidia-smi"
    script.write_text(f"#!{interpreter}\n{body}\n")
    script.chmod(0o755)
    return script


def write_smi(directory: Path) -> Path:
    """An `nvidia-smi` in `directory` that shows the GPUs of the state file in its
    environment.
    """
    return write_script(directory, (_HERE / "fake_smi.py").read_text(), sys.executable)


class FakeGpus:
    """The GPUs of a fake host.

    Each change is on disk when the method returns, and seen by processes that run.
    """

    def __init__(
        self, state_file: Path, library: Path | None = None, driver: str = "550.54.14"
    ) -> None:
        """Without a built `library`, one is built beside the state file."""
        self._state_file = state_file
        self._library = library or build(state_file.parent / "nvml")
        self._driver = [("driver", driver)]
        self._gpus: dict[str, list[str]] = {}  # the MIG instances of each GPU
        self._values: dict[str, dict[str, Value]] = {}
        self._extra: dict[str, list[tuple[str, str]]] = {}  # lines that may repeat
        self._write()

    def add(
        self,
        uuid: str,
        name: str = "NVIDIA A100-SXM4-40GB",
        memory_mb: int = 40960,
        **values: Value,
    ) -> None:
        """Add a GPU after those there are: idle, healthy and able to do all, but for
        what `values` says.
        """
        idle = {
            "memory_used_mb": 0,
            "cc": "8.0",
            "temperature": 35,
            "utilization": 0,
            "power_w": 55.0,
            "minor": len(self._gpus),
        }
        healthy = {"ecc": 0, "ecc_corrected": 0, "remapped_rows": "0 0 0 0"}
        self._gpus[uuid] = []
        self._add(
            uuid, {"name": name, "memory_mb": memory_mb, **idle, **healthy, **values}
        )

    def add_mig(
        self,
        parent: str,
        uuid: str,
        name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        memory_mb: int = 4864,
    ) -> None:
        """Turn MIG mode on for the GPU `parent` and add an instance to it."""
        self._values[parent]["mig_mode"] = 1
        self._gpus[parent].append(uuid)
        number = len(self._gpus[parent])
        self._add(
            uuid,
            {
                "name": name,
                "memory_mb": memory_mb,
                "memory_used_mb": 0,
                "instance": number,
                "compute_instance": 0,
            },
        )

    def remove(self, uuid: str) -> None:
        """Take a GPU, and its instances, out of the host."""
        for gone in (uuid, *self._gpus.pop(uuid)):
            del self._values[gone], self._extra[gone]
        self._write()

    def lose(self, uuid: str, at: str = "handle") -> None:
        """Let a GPU drop off the bus: at "handle" not even its UUID can be read, at
        "reads" only its values cannot.
        """
        self.set(uuid, lost=at)

    def set(self, uuid: str, **values: Value) -> None:
        """Change values (keys in `_KEYS`); None takes one away, and the GPU answers
        "not supported".
        """
        if unknown := values.keys() - _KEYS:
            raise KeyError(
                f"the fake NVML library knows no {sorted(unknown)}; it knows"
                f" {sorted(_KEYS)}"
            )
        self._values[uuid].update(values)
        self._write()

    def run(self, uuid: str, pid: int, memory_mb: int | None = None) -> None:
        """Show a process on a GPU.

        Without `memory_mb` the driver does not tell its memory.
        """
        self._extra[uuid].append(
            ("process", f"{pid}" if memory_mb is None else f"{pid} {memory_mb}")
        )
        self._write()

    def leave(self, uuid: str, pid: int) -> None:
        """Show the process no more."""
        lines = self._extra[uuid]
        lines[:] = [
            line
            for line in lines
            if line[0] != "process" or line[1].split()[0] != str(pid)
        ]
        self._write()

    def fail(self, function: str, code: int, uuid: str | None = None) -> None:
        """Let an NVML function answer an error code, for one GPU or for the whole
        driver; 0 heals it.
        """
        lines = self._driver if uuid is None else self._extra[uuid]
        lines[:] = [
            line
            for line in lines
            if not (line[0] == "error" and line[1].startswith(f"{function} "))
        ]
        lines.append(("error", f"{function} {code}"))
        self._write()

    def xid(self, uuid: str, number: int, instance: int | None = None) -> None:
        """Let the driver report an Xid error of a GPU, or of an instance on it, to
        whoever listens by then.
        """
        self._extra[uuid].append(
            ("xid", f"{number}" if instance is None else f"{number} {instance}")
        )
        self._write()

    def is_listened_to(self, uuid: str) -> bool:
        """Whether a living process hears the Xid errors of this GPU."""
        path = self._state_file.with_name(f"{self._state_file.name}.listeners")
        lines = path.read_text().splitlines() if path.exists() else []
        pids = [int(line.split()[1]) for line in lines if line.split()[0] == uuid]
        return any(psutil.pid_exists(pid) for pid in pids)

    def env(self) -> dict[str, str]:
        """What a process must have in its environment, from its start, to see these
        GPUs.
        """
        return {
            "LD_LIBRARY_PATH": str(self._library.parent),
            STATE_VARIABLE: str(self._state_file),
        }

    def _add(self, uuid: str, values: dict[str, Value]) -> None:
        self._values[uuid] = {}
        self._extra[uuid] = []
        self.set(uuid, **values)

    def _write(self) -> None:
        lines = list(self._driver)
        for gpu, instances in self._gpus.items():
            lines += [("gpu", gpu), *self._lines(gpu)]
            for instance in instances:
                lines += [("mig", instance), *self._lines(instance)]
        new = self._state_file.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in lines))
        new.replace(self._state_file)  # at once, so that no process reads half of it

    def _lines(self, uuid: str) -> list[tuple[str, str]]:
        values = [
            (key, str(value))
            for key, value in self._values[uuid].items()
            if value is not None
        ]
        return values + self._extra[uuid]
