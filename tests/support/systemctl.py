#!/usr/bin/env python3
"""What gpuyard needs of systemctl, without systemd: it runs the unit's command, and
again when that fails.

SYSTEMD_FAKE is its folder: `calls`, a line for each call, and `main`, the pid of the
process that looks after the command.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["SYSTEMD_FAKE"])
MAIN = FOLDER / "main"


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--user"]
    with (FOLDER / "calls").open("a") as calls:
        calls.write(" ".join(sys.argv[1:]) + "\n")
    if words[0] == "enable":
        start()
    elif words[0] == "disable":
        os.kill(int(MAIN.read_text()), signal.SIGTERM)
    return 0


def start() -> None:
    """Look after the command in a process of its own."""
    unit = next(FOLDER.glob("**/*.service")).read_text()
    command = setting(unit, "ExecStart")
    environment = {
        **dict(pair.split("=", 1) for pair in setting(unit, "Environment")),
        "HOME": os.environ["HOME"],
    }
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    running = subprocess.Popen(command, env=environment)
    signal.signal(signal.SIGTERM, lambda *_: running.terminate())
    MAIN.write_text(str(os.getpid()))
    while running.wait() != 0:
        time.sleep(0.1)
        running = subprocess.Popen(command, env=environment)
    os._exit(0)


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
