"""Where an attempt finds the code that it was submitted with: the agent makes the
folder, and the server of the same home tells of it.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from gpuyard.config.paths import Home

_CHANGES = "changes.json"


def folder_of(private: Path) -> Path:
    """The folder with the code, below the attempt's own one."""
    return private / "code"


def note_changes(private: Path, changed: Sequence[str]) -> None:
    """Note which files had changed when the folder was made."""
    (private / _CHANGES).write_text(json.dumps(changed))


def code_of_attempt(home: Home, attempt_id: str) -> tuple[Path, list[str]] | None:
    """The folder with the code of an attempt, and which files had changed; None if it
    had none.
    """
    private = home.node / "attempts" / attempt_id
    if not folder_of(private).is_dir():
        return None
    try:
        return folder_of(private), json.loads((private / _CHANGES).read_text())
    except (OSError, ValueError):
        return folder_of(private), []
