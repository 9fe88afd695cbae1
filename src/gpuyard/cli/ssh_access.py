"""Real ssh into a running job, for editors and programs that speak nothing else.

`ssh` starts `gpuyard ssh --stdio JOB` as its ProxyCommand. That runs OpenSSH's own
server beside the job, for this one connection, on the input and output of the command:
it listens nowhere, and it ends with the connection or with the job. Who may run
commands in the job may do this.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.config.paths import Home
from gpuyard.domain.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.client.sync_job import JobHandle

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,127}\$?")
# $1 is the public key. Sessions get the environment and the folder of the job, which
# sshd would replace.
_SERVER = r"""
set -eu
umask 077
PATH=$PATH:/usr/sbin:/sbin
if ! sshd=$(command -v sshd); then
    echo "gpuyard: this node has no sshd: install openssh-server there" >&2
    exit 127
fi
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 129' HUP TERM
printf '%s\n' "$1" > "$folder/key"
ssh-keygen -q -t ed25519 -N '' -f "$folder/host"
export -p > "$folder/environment"
cat > "$folder/session" <<EOF
terminal=\${TERM-}
. "$folder/environment"
TERM=\${terminal:-\${TERM-dumb}}
export TERM
cd "$PWD"
EOF
cat >> "$folder/session" <<'EOF'
[ -z "${SSH_ORIGINAL_COMMAND-}" ] || exec "${SHELL:-/bin/sh}" -c "$SSH_ORIGINAL_COMMAND"
command -v bash > /dev/null && exec bash -i
exec sh -i
EOF
sftp=internal-sftp
for place in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh; do
    [ ! -x $place/sftp-server ] || sftp=$place/sftp-server
done
cat > "$folder/config" <<EOF
HostKey $folder/host
AuthorizedKeysFile $folder/key
ForceCommand sh $folder/session
Subsystem sftp $sftp
AuthenticationMethods publickey
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
EOF
"$sshd" -i -f "$folder/config" -E "$folder/log" || { cat "$folder/log" >&2; exit 1; }
"""


def server_command() -> list[str]:
    """The command that serves one connection of ssh on its input and output.
    GpuyardError without OpenSSH here.
    """
    return ["sh", "-c", _SERVER, "sh", _key().with_suffix(".pub").read_text().strip()]


def user_of(job: "JobHandle") -> str:
    """The account under which a running job runs. GpuyardError."""
    done = job.exec(["id", "-un"])
    return checked_user(done.stdout.decode(errors="replace").strip())


def checked_user(name: str) -> str:
    """The name of an account as a node tells it; GpuyardError if it is none. With a
    line end in it, a node could write commands into the settings of ssh here.
    """
    if not _USER.fullmatch(name):
        raise GpuyardError(
            f"The node says that the job runs as {name[:80]!r}, which is no account."
        )
    return name


def config_entry(job: str, user: str) -> str:
    """What `~/.ssh/config` needs for the host `gpuyard-JOB`.

    gpuyard itself makes sure who answers, so ssh need not know the key of the host,
    which is another one each time.
    """
    return f"""\
Host gpuyard-{job}
    User {user}
    ProxyCommand {_ourselves()} ssh --stdio {shlex.quote(job)}
    IdentityFile {_key()}
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""


def _ourselves() -> str:
    """This command, as another program finds it and the same instance."""
    variables = [
        f"{name}={value}"
        for name in ("GPUYARD_HOME", "GPUYARD_URL")
        if (value := os.environ.get(name))
    ]
    installed = shutil.which("gpuyard")
    words = [installed] if installed else [sys.executable, "-m", "gpuyard.cli.entry"]
    if variables:
        words = ["env", *variables, *words]
    # ssh takes a percent sign for one of its own words.
    return shlex.join(words).replace("%", "%%")


def _key() -> Path:
    """The key of this user for jobs, made when it is needed first. GpuyardError."""
    key = Home.find().root / "ssh" / "id_ed25519"
    if key.exists():
        return key
    key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpuyard"]
    try:
        subprocess.run([*command, "-f", str(key)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise GpuyardError(
            f"No key for ssh can be made: {error}", "Install OpenSSH's client here."
        ) from None
    return key
