"""The environment that a job carries from the shell that submitted it: which variables
travel, and how they differ from those of the server.

Standard library only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from gpuyard.domain.errors import is_text
from gpuyard.domain.secret_names import looks_like_key

FILLED_IN = (
    "PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "LANG",
)
"""What clients fill into the `environment` of a spec: what a job needs of the caller's
shell to find the same programs. Never everything: secrets would end in the ledger.
"""
# Variables of a terminal, a session, a login or a place, and those that say which GPUs
# a program may use. They are not true for a job that runs later and without a terminal.
NEVER_CARRIED = (
    # The shell itself.
    "_",
    "SHLVL",
    "PWD",
    "OLDPWD",
    "PS[0-9]",
    "PROMPT_COMMAND",
    "HIST*",
    # Its terminal.
    "TERM",
    "TERM_*",
    "TERMCAP",
    "COLORTERM",
    "COLUMNS",
    "LINES",
    "WINDOW",
    "TMUX",
    "TMUX_*",
    "STY",
    "VTE_VERSION",
    "VSCODE_*",
    # Its session.
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "WINDOWID",
    "SESSION_MANAGER",
    "SSH_*",
    "SUDO_*",
    "XDG_SESSION_*",
    "XDG_RUNTIME_DIR",
    "XDG_SEAT",
    "XDG_VTNR",
    "DBUS_*",
    "GPG_AGENT_INFO",
    "GPG_TTY",
    "MAIL",
    # Its service.
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
    "LISTEN_*",
    "SYSTEMD_*",
    # What providers and agents set.
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "SLURM_*",
    "SLURMD_*",
    "KUBERNETES_*",
    "GPUYARD_*",
)


@dataclass(frozen=True, slots=True)
class CarriedEnvironment:
    """Variables with their values, and the names of those that look like keys: they
    were exported, too, and stay behind.

    Only jobs that `user` submits carry it, empty for the owner of the instance; jobs of
    all if that is None, as in those that older versions stored.
    """

    variables: Mapping[str, str]
    keys: tuple[str, ...] = ()
    user: str | None = None

    def is_for(self, user: str | None) -> bool:
        """Whether jobs of this user may carry it."""
        return self.user is None or self.user == (user or "")


def carried_from(
    environment: Mapping[str, str], never: tuple[str, ...] = ()
) -> CarriedEnvironment:
    """What travels of an environment. `never`: more patterns (`fnmatch`) of names that
    do not. Values that are not UTF-8 do not travel either.
    """
    stays = _any_of((*NEVER_CARRIED, *never)).match
    names = [name for name in sorted(environment) if not stays(name)]
    keys = tuple(name for name in names if looks_like_key(name))
    variables = {
        name: environment[name]
        for name in names
        if name not in keys and is_text(name + environment[name])
    }
    return CarriedEnvironment(variables, keys)


@lru_cache(maxsize=8)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Matches what one of the patterns does."""
    return re.compile("|".join(translate(pattern) for pattern in patterns))


@dataclass(frozen=True, slots=True)
class EnvironmentDifference:
    """Names of variables: only in the first environment, only in the second, and in
    both with other values.
    """

    added: tuple[str, ...]
    missing: tuple[str, ...]
    changed: tuple[str, ...]


def difference(
    first: Mapping[str, str], second: Mapping[str, str]
) -> EnvironmentDifference:
    """How `first` differs from `second`."""
    both = first.keys() & second.keys()
    return EnvironmentDifference(
        tuple(sorted(first.keys() - both)),
        tuple(sorted(second.keys() - both)),
        tuple(sorted(name for name in both if first[name] != second[name])),
    )
