"""Units of systemd: for the server of a home, and for the agent of a machine that has
joined an instance.

Standard library only.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

UNIT = "gpuyard.service"
AGENT_UNIT = "gpuyard-agent.service"


def unit_path(*, system: bool, name: str = UNIT) -> Path:
    """Where the unit of the system, or of this user, is kept."""
    if system:
        return Path("/etc/systemd/system") / name
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "systemd" / "user" / name


@dataclass(frozen=True, slots=True)
class SharedService:
    """What the unit of a server for a group says more: where its settings are, and
    under which account it runs.
    """

    settings: Path
    group: str
    account: str

    def lines(self) -> str:
        """The lines of the section `Service`."""
        found = [
            f"Environment={_quoted(f'GPUYARD_CONFIG={self.settings}')}",
            "# For its socket and its home; jobs pass through the second to their own.",
            "RuntimeDirectory=gpuyard",
            "RuntimeDirectoryPreserve=restart",
            "StateDirectory=gpuyard",
            "StateDirectoryMode=0711",
        ]
        if self.account != "root":
            found += [f"User={self.account}", f"SupplementaryGroups={self.group}"]
        return "".join(f"{line}\n" for line in found)


def unit_text(home: Path, *, system: bool, shared: SharedService | None = None) -> str:
    """The unit: it starts the server at boot and again when it was killed, but not
    after `gpuyard down`.

    Keys for buckets and providers are read from `service.env`, if that exists: in the
    home, or beside the settings of a shared server.
    """
    keys = (shared.settings.parent if shared else home) / "service.env"
    more = shared.lines() if shared else ""
    command = [sys.executable, "-m", "gpuyard.server", "--foreground", "--take-over"]
    wanted_by = "multi-user.target" if system else "default.target"
    return f"""\
# Written by `gpuyard service install`.
[Unit]
Description=gpuyard, one queue for all GPU work
After=network-online.target
Wants=network-online.target
# However often it fails, it is tried again.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={" ".join(map(_quoted, command))}
Environment={_quoted(f"GPUYARD_HOME={home}")} GPUYARD_SERVER__IDLE_EXIT_S=0
Environment={_quoted(f"PATH={os.environ.get('PATH', os.defpath)}")}
EnvironmentFile=-{_escaped(str(keys))}
{more}\
Restart=on-failure
RestartSec=1
# Agent, keeper and jobs outlive the server.
KillMode=process
OOMPolicy=continue
# The limits of jobs are control groups below this one.
Delegate=yes

[Install]
WantedBy={wanted_by}
"""


def agent_unit_text(home: Path, *, system: bool) -> str:
    """The unit of the agent of a machine that has joined an instance."""
    command = [sys.executable, "-m", "gpuyard.server.joined_node", "--service"]
    wanted_by = "multi-user.target" if system else "default.target"
    return f"""\
# Written by `gpuyard join`.
[Unit]
Description=gpuyard, the agent of a machine that has joined
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={" ".join(map(_quoted, command))}
Environment={_quoted(f"GPUYARD_HOME={home}")}
Environment={_quoted(f"PATH={os.environ.get('PATH', os.defpath)}")}
Restart=on-failure
RestartSec=1
# Agent, keeper and jobs outlive it.
KillMode=process
OOMPolicy=continue
# The limits of jobs are control groups below this one.
Delegate=yes

[Install]
WantedBy={wanted_by}
"""


def _quoted(word: str) -> str:
    """A word of a command or an assignment, whatever characters it has."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_escaped(plain)}"'


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
