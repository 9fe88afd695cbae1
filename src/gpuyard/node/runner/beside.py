"""A command beside the program of an attempt."""

import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Dict, List

from .files import write
from .program import PROGRAM

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_ATTEMPT = "GPUYARD_ATTEMPT_ID"
# These reach the command, too, on a terminal or from Slurm.
_ITS_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


def run_beside(folder: Path, mark: str, command: List[str]) -> int:
    """Run the command, with the environment and in the folder of the program; returns 0
    even if it failed: the file of the `mark` tells that.
    """
    # Before it begins: the first signal for it must not end us.
    ignored = [
        number
        for number in _ITS_SIGNALS
        if signal.signal(number, signal.SIG_IGN) == signal.SIG_IGN
    ]
    pid = os.fork()
    if not pid:
        for number in set(_ITS_SIGNALS).difference(ignored):
            signal.signal(number, signal.SIG_DFL)
        os._exit(_become(folder, command))
    status = os.waitpid(pid, 0)[1]
    ended = os.WIFSIGNALED(status)
    code = 128 + os.WTERMSIG(status) if ended else os.WEXITSTATUS(status)
    write(folder / "beside-{}.json".format(mark), {"code": code})
    return 0


def _become(folder: Path, command: List[str]) -> int:
    """Returns an exit code, as of a shell, if that fails."""
    try:
        program = json.loads((folder / PROGRAM).read_text())
        environment = _environment(int(program["pid"]), folder.name)
    except (OSError, ValueError, KeyError) as error:
        _say("the program of the job does not run here: {}".format(error))
        return _NOT_FOUND
    if os.isatty(0) and os.environ.get("TERM"):
        environment["TERM"] = os.environ["TERM"]
    try:
        os.chdir(program["workdir"])
        os.execvpe(command[0], command, environment)
    except OSError as error:
        _say("{}: {}".format(command[0], os.strerror(error.errno or 0)))
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        return _NOT_FOUND if missing else _NOT_EXECUTABLE


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _environment(pid: int, attempt: str) -> Dict[str, str]:
    """The variables of the program; ValueError if the process is another one by now."""
    content = Path("/proc/{}/environ".format(pid)).read_bytes()
    pairs = [os.fsdecode(pair).split("=", 1) for pair in content.split(b"\0") if pair]
    found = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    if found.get(_ATTEMPT) != attempt:
        raise ValueError("it has ended")
    return found
