#!/usr/bin/env python3
"""What gpuyard needs of systemctl, without systemd: it runs the unit's command, and
again when that fails. The command of a timer's unit it runs each second, because tests
do not wait as long as the timer says.

SYSTEMD_FAKE is its folder: `calls`, a line for each call, and `main`, the pid of the
process that looks after the command.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["SYSTEMD_FAKE"])
MAIN = FOLDER / "main"
SYSTEM = Path("/etc/systemd/system")


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--user"]
    with (FOLDER / "calls").open("a") as calls:
        calls.write(" ".join(sys.argv[1:]) + "\n")
    if words[0] == "enable" and words[-1].endswith(".timer"):
        repeat(words[-1])
    elif words[0] == "enable":
        start(words[-1])
    elif words[0] == "disable":
        os.kill(int(MAIN.read_text()), signal.SIGTERM)
    return 0


def repeat(timer: str) -> None:
    """Run the command of a timer's unit again and again, in a process of its own."""
    unit = (SYSTEM / timer).with_suffix(".service")
    if os.fork():
        return
    os.setsid()
    while True:
        subprocess.run(setting(unit.read_text(), "ExecStart"), check=False)
        time.sleep(1.0)


def start(name: str) -> None:
    """Look after the command in a process of its own."""
    own = next(FOLDER.glob("**/*.service"), None) if is_of_user() else SYSTEM / name
    if own is None or not own.exists():
        return  # of a program that the test's machine has not
    unit = own.read_text()
    command = [*as_account(unit), *setting(unit, "ExecStart")]
    environment = {
        **dict(pair.split("=", 1) for pair in setting(unit, "Environment")),
        "HOME": os.environ["HOME"],
    }
    if "LANG" in os.environ:
        environment["LANG"] = os.environ["LANG"]
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    running = subprocess.Popen(command, env=environment)
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        running.terminate()

    signal.signal(signal.SIGTERM, stop)
    MAIN.write_text(str(os.getpid()))
    while running.wait() != 0 and not stopped:
        time.sleep(0.1)
        running = subprocess.Popen(command, env=environment)
    os._exit(0)


def is_of_user() -> bool:
    return "--user" in sys.argv


def as_account(unit: str) -> list[str]:
    """The words that run a command under the unit's account, whose folders are made."""
    account = "".join(setting(unit, "User"))
    for name, place in (("Runtime", "/run"), ("State", "/var/lib")):
        for folder in setting(unit, f"{name}Directory"):
            path = Path(place, folder)
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(int("".join(setting(unit, f"{name}DirectoryMode")) or "755", 8))
            if account:
                shutil.chown(path, account, account)
    if not account:
        return []
    groups = ",".join([account, *setting(unit, "SupplementaryGroups")])
    return ["setpriv", f"--reuid={account}", f"--regid={account}", f"--groups={groups}"]


def setting(unit: str, name: str) -> list[str]:
    """The words of all lines with this setting."""
    lines = re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)
    return [
        word.replace("%%", "%").replace("$$", "$")
        for line in lines
        for word in shlex.split(line)
    ]


if __name__ == "__main__":
    sys.exit(main())
