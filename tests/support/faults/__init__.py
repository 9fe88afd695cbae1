"""A machine that fails on demand, for the processes of one test: see shim.c."""

import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("shim.c")


class Faults:
    """Give `environment` to a process; it and its children then feel what is set here,
    at once.
    """

    def __init__(self, folder: Path) -> None:
        library = folder / "faults.so"
        self._file = folder / "faults"
        self._syncs = folder / "syncs"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O2", "-o", library, _SOURCE, "-ldl"],
            check=True,
        )
        self._values = [0, 0]
        self._file.write_bytes(bytes(16))
        self.environment = {
            "LD_PRELOAD": str(library),
            "TEST_FAULTS": str(self._file),
            "TEST_SYNCS": str(self._syncs),
        }

    def synced(self) -> list[str]:
        """Each sync and rename so far, in order: `sync PATH` and `rename PATH`."""
        return self._syncs.read_text().splitlines() if self._syncs.exists() else []

    def syncs_fail(self, errno: int) -> None:
        """Let each fsync and fdatasync fail with `errno`; 0: let them work."""
        self._set(0, errno)

    def clock_is_off(self, seconds: float) -> None:
        """Let the wall clock be off by so much."""
        self._set(1, int(seconds * 1e9))

    def _set(self, index: int, value: int) -> None:
        self._values[index] = value
        # Written in place: the processes have mapped this very file.
        with self._file.open("r+b") as file:
            file.write(struct.pack("qq", *self._values))
