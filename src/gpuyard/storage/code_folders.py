"""Where an attempt finds the code that it was submitted with: the agent makes the
folder, and the server of the same home tells of it.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from gpuyard.storage.untrusted import write_beneath

_CHANGES = "changes.json"


def folder_of(private: Path) -> Path:
    """The folder with the code, below the attempt's own one."""
    return private / "code"


def note_changes(private: Path, changed: Sequence[str]) -> None:
    """Note which files had changed when the folder was made. Only the agent's user may
    read it.
    """
    write_beneath(private, _CHANGES, json.dumps(changed).encode())


def code_of_attempt(private: Path) -> tuple[Path, list[str]] | None:
    """The folder with the code of the attempt whose own folder is `private`, and which
    files had changed; None if it had none.
    """
    if not folder_of(private).is_dir():
        return None
    try:
        return folder_of(private), json.loads((private / _CHANGES).read_text())
    except (OSError, ValueError):
        return folder_of(private), []
