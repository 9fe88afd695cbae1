"""What git says of a folder: its commit, whether files differ from it, and which files
it tracks.
"""

import os
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gpuyard.config.private_environment import public_environment
from gpuyard.domain.secret_names import mask_keys

_TIMEOUT_S = 5.0
# A folder's own settings must start no programs and leave no locks.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
_STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=no")
_COMMIT = "# branch.oid "
_NO_COMMIT = "(initial)"
_DIFF = ("diff", "--no-ext-diff")
_NAMES = ("--name-only", "--relative", "-z")
_DIFF_FORM = ("--no-color", "--no-textconv", "--irreversible-delete")
# More do not fit into a command.
_MOST_LEFT_OUT = 500
_LONGEST_DIFF = 200_000


@dataclass(frozen=True, slots=True)
class GitState:
    """`commit` is empty before the first one. `tracked` are paths relative to the
    folder, with slashes.
    """

    commit: str
    dirty: bool
    tracked: frozenset[str]


def git_state(folder: Path) -> GitState | None:
    """The state of the folder; None where there is no repository or no git."""
    status = _ask(folder, *_STATUS, "--ignore-submodules=all")
    tracked = _ask(folder, "ls-files", "-z")
    if status is None or tracked is None:
        return None
    commits = [line[len(_COMMIT) :] for line in status if line.startswith(_COMMIT)]
    commit = commits[0] if commits and commits[0] != _NO_COMMIT else ""
    dirty = any(not line.startswith("#") for line in status)
    return GitState(commit, dirty, frozenset(tracked))


def git_diff(folder: Path, stored: Collection[str]) -> str:
    """How the tracked files of the folder differ from the commit, without what looks
    like keys; cut off where it is long, empty if git fails. Of files that are not
    `stored` (paths relative to the folder), and of removed ones, it has no content.
    """
    names = _ask(folder, *_DIFF, *_NAMES, "HEAD", "--", ".")
    others = [
        name
        for name in names or ()
        if name not in stored and os.path.lexists(folder / name)
    ]
    if len(others) > _MOST_LEFT_OUT:
        return ""
    left_out = (f":(exclude,literal){name}" for name in others)
    output = _output(folder, *_DIFF, *_DIFF_FORM, "HEAD", "--", ".", *left_out)
    if not output:
        return ""
    text = output[:_LONGEST_DIFF].decode(errors="replace")
    if len(output) > _LONGEST_DIFF:
        text = f"{text.rpartition(chr(10))[0]}\n[{len(output):,} bytes in all]\n"
    return mask_keys(text)


def _ask(folder: Path, *words: str) -> list[str] | None:
    """The parts that git prints, each ended by a NUL byte; None if it fails."""
    output = _output(folder, *words)
    if output is None:
        return None
    return [os.fsdecode(part) for part in output.split(b"\0") if part]


def _output(folder: Path, *words: str) -> bytes | None:
    """What git prints; None if it fails."""
    environment = {
        name: value
        for name, value in public_environment().items()
        if not name.startswith("GIT_")
    }
    try:
        done = subprocess.run(
            [*_GIT, "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout
