"""One attempt, or the share of one, from its order to its end."""

import ctypes
import errno
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional, Set, Tuple

from .checkpoints import CheckpointCopies
from .files import made, write
from .log_mask import LogMask
from .processes import reap_children, signal_number
from .program import RunningProgram

_SUBREAPER = 36
# The external queue may send its warning this long before its limit, plus the grace.
_EARLY_S = 150.0
# An external queue ends a job with one of these: USR1 leaves time to save, TERM has a
# deadline of its own.
_STOP_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
_SIGNAL_LAG_S = 0.5
# More than by what the times of two files may be wrong.
_CLOCK_TICK_S = 0.05
_REASONS = {
    errno.ENOENT: "command_not_found",
    errno.EACCES: "not_executable",
    errno.ENOEXEC: "not_executable",
}


def main() -> int:
    """Run the attempt or the share of one that the command line names."""
    folder = Path(sys.argv[1])
    if sys.argv[2:3] == ["--beside"]:
        from .beside import run_beside

        return run_beside(folder, sys.argv[3], sys.argv[4:])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_STOP_SIGNALS})
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    return share(folder) if "--share" in sys.argv[2:] else run(folder)


def run(folder: Path) -> int:
    """Run a whole attempt; returns 0 even if the job failed: `exit.json` tells that."""
    if not _is_first_start(folder):
        return 0
    order = json.loads((folder / "order.json").read_text())
    secrets = _take_secrets(folder)
    order["environment"].update(secrets)
    mask = LogMask(folder, list(secrets.values()))
    log = os.open(str(folder / "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    began = time.time()
    job = RunningProgram(order, log)
    fault = _unpack(folder)
    if fault:
        message = f"the copy of its folder cannot be unpacked: {fault}"
        _write_exit(folder, began, "workdir_missing", message=message, exit_code=None)
        return 0
    try:
        checkpoints = CheckpointCopies(order, folder)
        job.start(folder)
    except (OSError, ValueError) as error:
        reason, message = _explain(error, order)
        _write_exit(folder, began, reason, message=message, exit_code=None)
        return 0
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "") if order.get("gpus") else ""
    host = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    place = {"host": host, "gpus": [word for word in given.split(",") if word]}
    write(folder / "started.json", dict(place, at=began))
    follow(job, checkpoints, folder, mask=mask)
    for _ in range(int(order.get("retries") or 0)):
        again = job.run_again()
        if again is None:
            break
        job = again
        follow(job, checkpoints, folder, mask=mask)
    mask.hide_all()
    facts = dict(place, exit_code=job.code, ran_s=job.ran_s())
    _write_exit(folder, began, job.stop_reason, **facts)
    return 0


def share(folder: Path) -> int:
    """Run one node's share of a job on several nodes; returns the job's exit code."""
    order = json.loads((folder / "order.json").read_text())
    order.update(command=order["share"], timeout_s=None, stdin=False, watch=False)
    order["checkpoint"].update(path=None, every_s=None)
    order["environment"].update(_share_variables())
    save_signal = order["checkpoint"].get("signal")
    passed_on: Set[int] = {signal_number(save_signal)} if save_signal else set()
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    job = RunningProgram(order, None)
    try:
        job.start(folder)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{_explain(error, order)[1]}\n")
        return 127
    follow(job, None, folder, passed_on)
    return job.code if job.code >= 0 else 128 - job.code


def follow(
    job: RunningProgram,
    checkpoints: Optional[CheckpointCopies],
    folder: Path,
    passed_on: Optional[Set[int]] = None,
    mask: Optional[LogMask] = None,
) -> None:
    """Wait until the job has ended, and kill all that is left of it. A share passes the
    signals `passed_on` on and stops only at TERM: the first runner decides the rest.
    """
    awaited = {signal.SIGCHLD, *_STOP_SIGNALS, *(passed_on or ())}
    while not job.has_ended():
        job.tick()
        if mask:
            mask.hide_new()
        if checkpoints:
            checkpoints.scan()
        received = signal.sigtimedwait(awaited, 0.05 if job.stop_reason else 0.2)
        if received is not None and received.si_signo != signal.SIGCHLD:
            _obey(received.si_signo, job, folder, passed_on)
            continue
        if passed_on and job.must_save():
            job.ask_to_save()
        if job.must_stop(folder):
            job.stop(*_stop_reason(folder, job))
    # A signal to the whole job may end the program before it arrives here.
    if passed_on is None and not job.stop_reason:
        ended_by_signal = -job.code in _STOP_SIGNALS
        if signal.sigtimedwait(_STOP_SIGNALS, _SIGNAL_LAG_S if ended_by_signal else 0):
            job.stop(*_stop_reason(folder, job))
    job.kill()
    while reap_children(but=0):
        job.kill()
        time.sleep(0.01)
    if checkpoints:
        checkpoints.scan(last=not job.stop_reason or job.code >= 0)


def _obey(
    number: int, job: RunningProgram, folder: Path, passed_on: Optional[Set[int]]
) -> None:
    """Do what a signal to this runner asks for; `passed_on` as in `follow`."""
    if passed_on is None:
        job.stop(*_stop_reason(folder, job))
    elif number in passed_on:
        job.ask_to_save()
    elif number != signal.SIGUSR1:
        job.stop("passed on", may_save=False)


def _take_secrets(folder: Path) -> Dict[str, str]:
    """The variables with secret values; their file is gone afterwards."""
    path = folder / "secrets.json"
    try:
        found: Dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    path.unlink()
    return found


def _unpack(folder: Path) -> Optional[Exception]:
    """Unpack the copy of the job's folder, if one was sent; why it cannot be done."""
    archive = folder / "work.tar"
    if not archive.exists():
        return None
    # Few jobs have a copy, and all would start later for this import.
    import tarfile

    options: Dict[str, Any] = {}
    # gpuyard made the archive itself; newer Pythons trust only what they are told to.
    if hasattr(tarfile, "fully_trusted_filter"):
        options["filter"] = "fully_trusted"
    try:
        with tarfile.open(str(archive)) as content:
            members = content.getmembers()
            for member in members:
                # The archive holds no times, and many programs refuse the year 1970.
                member.mtime = int(time.time())
            content.extractall(str(made(folder / "work")), members, **options)
        archive.unlink()
        # What the program writes is newer than this, by the clock of the file system.
        time.sleep(_CLOCK_TICK_S)
        write(folder / "unpacked.json", {"at": time.time()})
    except (OSError, tarfile.TarError) as error:
        return error
    return None


def _stop_reason(folder: Path, job: RunningProgram) -> Tuple[str, bool]:
    """Why to stop and whether the job may save first: as `stop.json` of the provider
    says. Without it, the external queue stops the job: at its limit that is a timeout,
    unless the job can continue from a checkpoint and has no timeout of its own.
    """
    try:
        given = json.loads((folder / "stop.json").read_text())
        return str(given["reason"]), bool(given["checkpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        can_continue = job.checkpoint.get("signal") and not job.order.get("timeout_s")
        timed_out = job.is_near_limit(_EARLY_S) and not can_continue
        return "timed_out" if timed_out else "preempted", True


def _is_first_start(folder: Path) -> bool:
    """False when an external queue starts the attempt again: it runs once."""
    try:
        (folder / "claim").touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        write(folder / "again.json", {"at": time.time(), "job": _job_id()})
        return False
    return True


def _job_id() -> Optional[str]:
    """The id in Slurm's commands; a job of an array is named by its index."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array:
        return "{}_{}".format(array, os.environ.get("SLURM_ARRAY_TASK_ID"))
    return os.environ.get("SLURM_JOB_ID")


def _explain(error: Exception, order: Dict[str, Any]) -> Tuple[str, str]:
    """The reason and the message for a program that could not be started."""
    number = getattr(error, "errno", None)
    program = order["command"][0]
    reason = "invalid_argument"
    message = f"{program}: {error}"
    if number == errno.ENOTDIR:
        reason = "workdir_missing"
        message = f"the working directory {order.get('workdir')} is not there"
    elif number in _REASONS:
        reason = _REASONS[number]
        message = f"{program}: {os.strerror(number)}"
    return reason, message


def _write_exit(folder: Path, began: float, reason: str, **facts: Any) -> None:
    times = {"started_at": began, "ended_at": time.time()}
    write(folder / "exit.json", dict(times, reason=reason, **facts))


def _share_variables() -> Dict[str, str]:
    """The variables by which launchers such as torchrun know which share this is."""
    job = int(os.environ.get("SLURM_JOB_ID", "0"))
    return {
        "NODE_RANK": os.environ.get("SLURM_NODEID", "0"),
        "NNODES": os.environ.get("SLURM_NNODES", "1"),
        # Below those that Linux gives to connections that go out.
        "MASTER_PORT": str(20000 + job % 12768),
        "MASTER_ADDR": os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"),
    }
