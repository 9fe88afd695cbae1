"""Runs one attempt where no agent of gpuyard is: in a Slurm step, in a pod, on a rented machine.

`python3 runner.py DIR` carries out `DIR/order.json` once, and leaves beside it what the provider reads: `log`,
`started.json`, `checkpoints.json` and, last of all, `exit.json`. `python3 runner.py DIR --share` runs one node's share
of a gang, under the launcher that the first one started; it leaves nothing there.

One file, the standard library only, any Python from 3.6 on: it is shipped with the attempt and runs in whatever
environment the engine has. It parses no output.

Where there is `work.tar`, its content is the job's own folder.

The order: `command`, `workdir`, `environment`, `gpus` (whether it was given any), `stdin` (whether there is a file of
that name), `timeout_s`, `grace_s`, `checkpoint` (`path`, `signal`, `every_s`), `ids` (the variables that gpuyard sets),
`limit_s` (when the engine ends it), `watch` (whether to look for what else would come as a signal).
"""

import ctypes
import errno
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

_SUBREAPER = 36
_TERM_GRACE_S = 10.0
# An engine's warning may come so much before its limit, beside the grace.
_EARLY_S = 150.0
# Where it gives none, its runner minds the limit so much before it, beside the grace.
_WARNING_S = 60.0
_SCAN_S = 1.0
_FOLDER_QUIET_S = 2.0
_KEPT = 3
_STEP = re.compile(r"(?:step|iter|ckpt|checkpoint|epoch)[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE)
_UNFINISHED = (".tmp", ".partial", ".incomplete")
# What an engine sends to have a job end: with USR1 it leaves time to save, TERM comes with its own deadline.
_LEAVE = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
_REASONS = {errno.ENOENT: "command_not_found", errno.EACCES: "not_executable", errno.ENOEXEC: "not_executable"}
# What somebody of a job's own environment must not be able to set; and the array is ours, not the program's.
_OURS = ("GPUYARD_", "SLURM_ARRAY_")


class Job:
    """The process of one attempt and everything it starts."""

    def __init__(self, order: Dict[str, Any], log: Optional[int]) -> None:
        self.order = order
        self.checkpoint = _checkpoint(order)
        self.stopped = ""
        self._log = log
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        self._kill_at: Optional[float] = None
        self._term_at: Optional[float] = None
        self._began = time.monotonic()
        self._asked = self._began
        self._look_at = self._began

    def start(self, folder: Path) -> None:
        """Start it; OSError when it cannot be."""
        stdin = (folder / "stdin").open("rb") if self.order.get("stdin") else subprocess.DEVNULL
        workdir = self.order.get("workdir") or str(_made(folder / "work"))
        if not os.path.isdir(workdir):
            raise NotADirectoryError(errno.ENOTDIR, "there is no such folder", workdir)
        self._process = subprocess.Popen(
            self.order["command"], cwd=workdir, env=_environment(self.order), stdin=stdin, stdout=self._log,
            stderr=subprocess.STDOUT if self._log is not None else None, start_new_session=True,
            preexec_fn=_unblock,
        )  # fmt: skip

    def over(self) -> bool:
        """Has it ended? Reaps whatever of its children has."""
        assert self._process is not None
        ended = self._process.poll() is not None
        _reap_orphans(self._process.pid)
        return ended

    @property
    def code(self) -> int:
        """Its exit code, or the negative number of the signal that ended it."""
        assert self._process is not None
        return self._process.returncode

    def leave(self, reason: str, kindly: bool = True) -> None:
        """Have it end: its checkpoint signal and its grace, then TERM, then KILL. Asked again, nothing changes."""
        if self.stopped:
            return
        self.stopped = reason
        now, name = time.monotonic(), self.checkpoint.get("signal")
        if kindly and name:
            self.send(_number(name))
            self._term_at = now + float(self.order.get("grace_s") or 0.0)
        else:
            self._term_at = now

    def tend(self) -> None:
        """What the time calls for: a timeout, a checkpoint, the next step of leaving."""
        now = time.monotonic()
        limit, every, name = self.order.get("timeout_s"), self.checkpoint.get("every_s"), self.checkpoint.get("signal")
        if limit and now - self._began >= limit:
            self.leave("timed_out")
        if name and every and not self.stopped and now - self._asked >= every:
            self._asked = now
            self.send(_number(name))
        if self._term_at is not None and now >= self._term_at:
            self.send(signal.SIGTERM)
            self._term_at, self._kill_at = None, now + min(float(self.order.get("grace_s") or 0.0), _TERM_GRACE_S)
        if self._kill_at is not None and now >= self._kill_at:
            self.kill()

    @property
    def near_its_limit(self) -> bool:
        """Whether the engine would end it about now in any case."""
        limit = self.order.get("limit_s")
        lead = float(self.order.get("grace_s") or 0.0) + _EARLY_S
        return bool(limit) and time.monotonic() - self._began >= float(limit or 0.0) - lead

    def is_to_leave(self, folder: Path) -> bool:
        """Where an engine passes no signals on (`watch`): has the provider left a word, or is its limit near?"""
        now = time.monotonic()
        if not self.order.get("watch") or self.stopped or now < self._look_at:
            return False
        self._look_at = now + _SCAN_S
        limit, lead = self.order.get("limit_s"), float(self.order.get("grace_s") or 0.0) + _WARNING_S
        near = bool(limit and self.checkpoint.get("signal")) and now - self._began >= float(limit or 0.0) - lead
        return near or (folder / "stop.json").exists()

    def next_s(self) -> float:
        """How long nothing is to be done, in seconds."""
        return 0.05 if self.stopped else 0.2

    def kill(self) -> None:
        """End it and all that it started."""
        assert self._process is not None
        self.send(signal.SIGKILL)
        for pid in _descendants(os.getpid()):
            _kill(pid, signal.SIGKILL)

    def send(self, number: int) -> None:
        """A signal to all of its group."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, number)
        except OSError:
            pass


class Checkpoints:
    """Notices complete checkpoints and puts copies of them aside, which the program cannot change any more."""

    def __init__(self, order: Dict[str, Any], folder: Path) -> None:
        self._pattern: Optional[str] = _checkpoint(order).get("path")
        self._base = Path(order.get("workdir") or str(folder / "work"))
        self._folder = folder
        self._last: Dict[str, Tuple[float, int]] = {}
        self._taken = self._looks()
        self._kept: List[Dict[str, Any]] = []
        self._number = 0
        self._due = 0.0

    def scan(self, last: bool = False) -> None:
        """Take what has looked the same twice; `last`: the program has ended by itself."""
        if not self._pattern or (time.monotonic() < self._due and not last):
            return
        self._due = time.monotonic() + _SCAN_S
        looks = self._looks()
        for name in sorted(looks, key=lambda each: (looks[each][0], each)):
            quiet = not (self._base / name).is_dir() or time.time() - looks[name][0] >= _FOLDER_QUIET_S
            settled = last or (quiet and self._last.get(name) == looks[name])
            if settled and self._taken.get(name) != looks[name]:
                self._take(name, looks[name])
        self._last = looks

    def _looks(self) -> Dict[str, Tuple[float, int]]:
        found: Dict[str, Tuple[float, int]] = {}
        for path in glob.glob(str(self._base / self._pattern), recursive=True) if self._pattern else ():
            look = _look(Path(path))
            if look and look[1] and not path.endswith(_UNFINISHED):
                found[os.path.relpath(path, str(self._base))] = look
        return found

    def _take(self, name: str, look: Tuple[float, int]) -> None:
        source, number = self._base / name, self._number
        target = _made(self._folder / "checkpoints") / "{:06d}-{}".format(number, source.name)
        _remove(target)
        try:
            (shutil.copytree if source.is_dir() else shutil.copy2)(str(source), str(target))
            whole = _look(source) == look
        except (OSError, shutil.Error):
            whole = False  # rotated away, or no room: the next scan tries again
        if not whole:
            _remove(target)
            return
        self._number += 1
        self._taken[name] = look
        steps = _STEP.findall(source.name)
        self._kept.append({"path": name, "step": int(steps[-1]) if steps else None, "at": time.time(),
                           "file": target.name, "directory": source.is_dir(), "size": look[1]})  # fmt: skip
        for old in self._kept[:-_KEPT]:
            _remove(self._folder / "checkpoints" / old["file"])
        self._kept = self._kept[-_KEPT:]
        _write(self._folder / "checkpoints.json", self._kept)


def run(folder: Path) -> int:
    """The whole of an attempt; returns 0, whatever became of the job: that stands in `exit.json`."""
    if not _claim(folder):
        return 0
    order = json.loads((folder / "order.json").read_text())
    log = os.open(str(folder / "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    began = time.time()
    job = Job(order, log)
    try:
        _unpack(folder)
    except (OSError, tarfile.TarError) as error:
        message = "the copy of its folder cannot be laid out: {}".format(error)
        _write(folder / "exit.json", _unstarted("workdir_missing", message, began))
        return 0
    try:
        checkpoints = Checkpoints(order, folder)
        job.start(folder)
    except (OSError, ValueError) as error:
        _write(folder / "exit.json", _failed(error, order, began))
        return 0
    _write(folder / "started.json", {"at": began, "host": _host(), "gpus": _gpus(order)})
    follow(job, checkpoints, folder)
    _write(folder / "exit.json", {"exit_code": job.code, "reason": job.stopped, "started_at": began,
                                  "ended_at": time.time(), "host": _host(), "gpus": _gpus(order)})  # fmt: skip
    return 0


def share(folder: Path) -> int:
    """One node's share of a gang: its exit code is the job's."""
    order = json.loads((folder / "order.json").read_text())
    order["command"] = order["share"]
    order["checkpoint"] = dict(_checkpoint(order), path=None, every_s=None)
    order["timeout_s"], order["stdin"], order["watch"] = None, False, False
    order["environment"] = dict(order["environment"], **_gang())
    asks = _checkpoint(order).get("signal")
    passed: Set[int] = {_number(asks)} if asks else set()
    signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    job = Job(order, None)
    try:
        job.start(folder)
    except (OSError, ValueError) as error:
        sys.stderr.write("{}\n".format(_failed(error, order, 0.0)["message"]))
        return 127
    follow(job, None, folder, passed)
    return job.code if job.code >= 0 else 128 - job.code


def follow(job: Job, checkpoints: Optional[Checkpoints], folder: Path, passed: Optional[Set[int]] = None) -> None:
    """See the job to its end, and leave nothing of it behind. A share of a gang passes signals on (`passed`), and
    leaves only by TERM: what else there is to decide, the first runner does."""
    waited = {signal.SIGCHLD, *_LEAVE, *(passed or ())}
    while not job.over():
        job.tend()
        if checkpoints:
            checkpoints.scan()
        told = signal.sigtimedwait(waited, job.next_s())
        if told is None or told.si_signo == signal.SIGCHLD:
            if job.is_to_leave(folder):
                job.leave(*_why(folder, job))
            continue
        if passed is None:
            job.leave(*_why(folder, job))
        elif told.si_signo in passed:
            job.send(told.si_signo)
        elif told.si_signo != signal.SIGUSR1:
            job.leave("passed on", False)
    job.kill()
    while _children():
        _reap_orphans(0)
        job.kill()
        time.sleep(0.01)
    if checkpoints:
        checkpoints.scan(last=not job.stopped or job.code >= 0)


def _unpack(folder: Path) -> None:
    """Lay out the copy of the job's folder that came along."""
    archive = folder / "work.tar"
    if archive.exists():
        # It is our own and as its owner made it; newer Pythons want to be told so.
        trust: Dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        with tarfile.open(str(archive)) as content:
            members = content.getmembers()
            for member in members:
                member.mtime = int(time.time())  # it holds no times, and many programs refuse the year 1970
            content.extractall(str(_made(folder / "work")), members, **trust)
        archive.unlink()


def _checkpoint(order: Dict[str, Any]) -> Dict[str, Any]:
    found: Dict[str, Any] = order.get("checkpoint") or {}
    return found


def _why(folder: Path, job: Job) -> Tuple[str, bool]:
    """Why it is to end, and whether it may save before: what the provider left a word of, or somebody else's doing.

    The engine's own limit is a timeout, unless all it cuts short is a program that can go on from what it saves now.
    """
    try:
        said = json.loads((folder / "stop.json").read_text())
        return str(said["reason"]), bool(said["checkpoint"])
    except (OSError, ValueError, KeyError):
        goes_on = job.checkpoint.get("signal") and not job.order.get("timeout_s")
        return ("timed_out" if job.near_its_limit and not goes_on else "preempted"), True


def _claim(folder: Path) -> bool:
    """An attempt runs once, however often an engine may start it: the first one claims it for good."""
    try:
        os.close(os.open(str(folder / "claim"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        _write(folder / "again.json", {"at": time.time(), "job": _job_id()})
        return False
    return True


def _job_id() -> Optional[str]:
    """What the engine's commands call it: one of an array goes by its place there."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return "{}_{}".format(array, os.environ.get("SLURM_ARRAY_TASK_ID")) if array else os.environ.get("SLURM_JOB_ID")


def _failed(error: Exception, order: Dict[str, Any], began: float) -> Dict[str, Any]:
    number = getattr(error, "errno", None)
    program = order["command"][0]
    if number == errno.ENOTDIR:
        reason, message = "workdir_missing", "the working directory {} is not there".format(order.get("workdir"))
    elif number in _REASONS:
        reason, message = _REASONS[number], "{}: {}".format(program, os.strerror(number))
    else:
        reason, message = "invalid_argument", "{}: {}".format(program, error)
    return _unstarted(reason, message, began)


def _unstarted(reason: str, message: str, began: float) -> Dict[str, Any]:
    return {"exit_code": None, "reason": reason, "message": message, "started_at": began, "ended_at": time.time()}


def _environment(order: Dict[str, Any]) -> Dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    found["PYTHONUNBUFFERED"] = "1"
    found.update(order.get("environment") or {})
    found.update(order.get("ids") or {})
    if order.get("gpus"):
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        found.update({} if given is None else {"CUDA_VISIBLE_DEVICES": given})
    else:
        found.update(CUDA_VISIBLE_DEVICES="", ROCR_VISIBLE_DEVICES="")
    return found


def _gang() -> Dict[str, str]:
    """Which share this is, for launchers such as torchrun."""
    rank, job = os.environ.get("SLURM_NODEID", "0"), int(os.environ.get("SLURM_JOB_ID", "0"))
    return {"NODE_RANK": rank, "NNODES": os.environ.get("SLURM_NNODES", "1"), "MASTER_PORT": str(20000 + job % 20000),
            "MASTER_ADDR": os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")}  # fmt: skip


def _gpus(order: Dict[str, Any]) -> List[str]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "") if order.get("gpus") else ""
    return [word for word in given.split(",") if word]


def _host() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _look(path: Path) -> Optional[Tuple[float, int]]:
    """When it changed last, and its size; None when it is gone."""
    try:
        inside = [item.stat() for item in path.rglob("*") if item.is_file()] if path.is_dir() else [path.stat()]
    except OSError:
        return None
    return (max([item.st_mtime for item in inside] or [0.0]), sum(item.st_size for item in inside))


def _write(path: Path, value: Any) -> None:
    """There whole or not at all."""
    temporary = path.with_name(".{}.{}".format(path.name, os.getpid()))
    with temporary.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(str(path), ignore_errors=True)
    elif path.exists():
        path.unlink()


def _number(name: str) -> int:
    return int(getattr(signal, name if name.startswith("SIG") else "SIG" + name))


def _unblock() -> None:
    """In the child: its signals are its own."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _descendants(root: int) -> List[int]:
    """Every process below this one that still runs."""
    parents: Dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc/{}/stat".format(entry)).read_text().rpartition(")")[2].split()
            except (OSError, UnicodeDecodeError):
                continue
            if fields[0] != "Z":
                parents[int(entry)] = int(fields[1])
    found: List[int] = []
    for pid in parents:
        above = pid
        while above in parents and above != root:
            above = parents[above]
        if above == root and pid != root:
            found.append(pid)
    return found


def _reap_orphans(but: int) -> None:
    """Children of the job whose parent is gone are ours; nobody asks how they ended."""
    for pid in _children():
        if pid != but:
            try:
                os.waitpid(pid, os.WNOHANG)
            except OSError:
                pass


def _children() -> List[int]:
    try:
        return [int(word) for word in Path("/proc/self/task/{}/children".format(os.getpid())).read_text().split()]
    except OSError:
        return []


def main() -> int:
    """See the module's own words."""
    folder = Path(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_LEAVE})
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    return share(folder) if "--share" in sys.argv[2:] else run(folder)


if __name__ == "__main__":
    sys.exit(main())
