"""Runs one attempt where no agent of gpuyard is: in a Slurm step, in a pod, on a rented
machine.

`python3 runner.py DIR` runs what `DIR/order.json` describes, once. It writes what the
provider reads: `log`, `started.json`, `checkpoints.json` and, last of all, `exit.json`.
`python3 runner.py DIR --share` runs one node's share of a job on several nodes, under
the launcher that the first runner started. It writes none of these files.

One file, the standard library only, any Python from 3.6 on: it is copied to the machine
and runs in the environment there. It parses no output. If `DIR/work.tar` exists, it
holds the job's own folder.

The order: `command`, `workdir`, `environment`, `gpus` (true when it was given any),
`stdin` (true when there is a file of that name), `timeout_s`, `grace_s`, `checkpoint`
(`path`, `signal`, `every_s`), `ids` (the variables that gpuyard sets), `limit_s` (when
the external queue ends it), `watch` (true where no signals arrive), `retries` (how many
more times a program runs that fails by itself; its times count from the first run).
`secrets.json` has more variables, if there are any. The runner removes it once it has
read it, and hides the values in the log.
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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

_SUBREAPER = 36
_TERM_GRACE_S = 10.0
# The external queue may send its warning this long before its limit, plus the grace.
_EARLY_S = 150.0
# Without a warning, the job is stopped this long before the limit, plus the grace.
_WARNING_S = 60.0
_SCAN_S = 1.0
_FOLDER_QUIET_S = 2.0
_KEPT = 3
_STEP = re.compile(r"(?i)(?:step|iter|ckpt|checkpoint|epoch)[-_=]?(\d{1,15})(?!\d)")
# The first runner writes this file when the shares shall save: a signal by srun would
# also reach processes that it ends.
_SAVE = "save.json"
# Shorter values would hide ordinary words.
_SHORTEST = 8
_MASK_BYTES = 1 << 20
_UNFINISHED = (".tmp", ".partial", ".incomplete")
# An external queue ends a job with one of these: USR1 leaves time to save, TERM has a
# deadline of its own.
_STOP_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
_SIGNAL_LAG_S = 0.5
_REASONS = {
    errno.ENOENT: "command_not_found",
    errno.EACCES: "not_executable",
    errno.ENOEXEC: "not_executable",
}
# A job's own environment must not set the first; the array of the second is gpuyard's,
# not the program's.
_OURS = ("GPUYARD_", "SLURM_ARRAY_")


class LogMask:
    """Overwrites secret values in the log with asterisks, so that offsets stay valid.

    See `domain/masking.py`.
    """

    def __init__(self, folder: Path, values: List[str]) -> None:
        lines = {line for value in values for line in [value, *value.splitlines()]}
        found = [line.encode() for line in lines if len(line.encode()) >= _SHORTEST]
        self._values = sorted(found, key=len, reverse=True)
        self._log = folder / "log"
        self._offset = 0

    def hide_new(self) -> None:
        """Hide the values in what was written since the last call."""
        if not self._values:
            return
        pattern = re.compile(b"|".join(re.escape(value) for value in self._values))
        margin = len(self._values[0]) - 1
        with suppress(OSError), self._log.open("r+b", buffering=0) as log:
            # A program that opens /dev/stdout anew may cut the log and begin again.
            if os.fstat(log.fileno()).st_size < self._offset:
                self._offset = 0
            while True:
                # Without the holes; an OSError behind the last byte.
                self._offset = os.lseek(log.fileno(), self._offset, os.SEEK_DATA)
                data = os.pread(log.fileno(), _MASK_BYTES + margin, self._offset)
                for match in pattern.finditer(data):
                    stars = b"*" * len(match.group())
                    os.pwrite(log.fileno(), stars, self._offset + match.start())
                if len(data) <= margin:
                    return
                self._offset += len(data) - margin

    def hide_all(self) -> None:
        """Hide the values wherever they are; the program has ended."""
        self._offset = 0
        self.hide_new()


class RunningProgram:
    """The process of one attempt and everything it starts."""

    def __init__(
        self,
        order: Dict[str, Any],
        log: Optional[int],
        began: Optional[float] = None,
    ) -> None:
        self.order = order
        self.checkpoint: Dict[str, Any] = order["checkpoint"]
        self.stop_reason = ""
        self._log = log
        self._grace_s = float(order.get("grace_s") or 0.0)
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        self._kill_at: Optional[float] = None
        self._term_at: Optional[float] = None
        self._began = time.monotonic() if began is None else began
        self._saved_at = time.monotonic()
        self._look_at = self._began
        self._asked_at: Optional[Tuple[float, int]] = None
        self._folder = Path()

    def start(self, folder: Path) -> None:
        """Start it; OSError when that fails."""
        self._folder = folder
        stdin: Any = subprocess.DEVNULL
        if self.order.get("stdin"):
            stdin = (folder / "stdin").open("rb")
        workdir = self.order.get("workdir") or str(_made(folder / "work"))
        if not os.path.isdir(workdir):
            raise NotADirectoryError(errno.ENOTDIR, "there is no such folder", workdir)
        self._process = subprocess.Popen(
            self.order["command"],
            cwd=workdir,
            env=_environment(self.order),
            stdin=stdin,
            stdout=self._log,
            stderr=subprocess.STDOUT if self._log is not None else None,
            start_new_session=True,
            preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, []),
        )

    def has_ended(self) -> bool:
        """True once it has ended. Reaps its orphaned children."""
        assert self._process is not None
        ended = self._process.poll() is not None
        _reap_children(but=self._process.pid)
        return ended

    @property
    def code(self) -> int:
        """Its exit code, or the negative number of the signal that ended it."""
        assert self._process is not None
        return self._process.returncode

    def stop(self, reason: str, may_save: bool = True) -> None:
        """End it: checkpoint signal and grace, TERM, KILL. A second call is ignored."""
        if self.stop_reason:
            return
        self.stop_reason = reason
        self._term_at = time.monotonic()
        name = self.checkpoint.get("signal")
        if may_save and name:
            self.send(_signal_number(name))
            self._term_at += self._grace_s

    def ask_to_save(self) -> None:
        """Ask each share, or else each process that the signal would not end."""
        if self._leads_shares():
            _write(self._folder / _SAVE, {"at": time.time()})
            return
        assert self._process is not None
        number = _signal_number(self.checkpoint["signal"])
        pid = self._process.pid
        for each in [pid, *_descendants(pid)]:
            if _outlives(each, number):
                with suppress(OSError):
                    os.kill(each, number)

    def run_again(self) -> "Optional[RunningProgram]":
        """The same program once more, with its times from the first run on. None when
        it has not failed by itself, or cannot be started any more.
        """
        if self.code == 0 or self.stop_reason:
            return None
        again = RunningProgram(self.order, self._log, self._began)
        try:
            again.start(self._folder)
        except OSError:
            return None
        return again

    def ran_s(self) -> float:
        """For how many seconds it has run, whatever becomes of the wall clock."""
        return time.monotonic() - self._began

    def _leads_shares(self) -> bool:
        return bool(self.order["share"] != self.order["command"])

    def must_save(self) -> bool:
        """In a share: True once after each time that the first runner asks."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _SCAN_S
        asked_at = _look(self._folder / _SAVE)
        is_new = asked_at is not None and asked_at != self._asked_at
        self._asked_at = asked_at
        return is_new

    def tick(self) -> None:
        """Do what is due: end it at its timeout, ask it to save, send TERM or KILL."""
        now = time.monotonic()
        timeout_s = self.order.get("timeout_s")
        every_s = self.checkpoint.get("every_s")
        name = self.checkpoint.get("signal")
        if timeout_s and now - self._began >= timeout_s:
            self.stop("timed_out")
        save_due = every_s and now - self._saved_at >= every_s
        if name and save_due and not self.stop_reason:
            self._saved_at = now
            self.ask_to_save()
        if self._term_at is not None and now >= self._term_at:
            self.send(signal.SIGTERM)
            self._term_at = None
            self._kill_at = now + min(self._grace_s, _TERM_GRACE_S)
        if self._kill_at is not None and now >= self._kill_at:
            self.kill()

    def is_near_limit(self, lead_s: float) -> bool:
        """True in the last `lead_s` seconds, plus the grace, before `limit_s`."""
        limit_s = self.order.get("limit_s")
        if not limit_s:
            return False
        return time.monotonic() - self._began >= limit_s - self._grace_s - lead_s

    def must_stop(self, folder: Path) -> bool:
        """With `watch`: True once `stop.json` is there, or the limit is near."""
        now = time.monotonic()
        if not self.order.get("watch") or self.stop_reason or now < self._look_at:
            return False
        self._look_at = now + _SCAN_S
        can_save = bool(self.checkpoint.get("signal"))
        if can_save and self.is_near_limit(_WARNING_S):
            return True
        return (folder / "stop.json").exists()

    def kill(self) -> None:
        """End it and all that it started."""
        self.send(signal.SIGKILL)
        for pid in _descendants(os.getpid()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def send(self, number: int) -> None:
        """Send a signal to its process group."""
        assert self._process is not None
        with suppress(OSError):
            os.killpg(self._process.pid, number)


class Checkpoints:
    """Copies complete checkpoints, so that the program cannot change them any more."""

    def __init__(self, order: Dict[str, Any], folder: Path) -> None:
        pattern: Optional[str] = order["checkpoint"].get("path")
        self._pattern = pattern if pattern and _stays_inside(pattern) else None
        self._base = Path(order.get("workdir") or str(folder / "work"))
        self._folder = folder
        self._last: Dict[str, Tuple[float, int]] = {}
        self._taken = self._looks()
        self._kept: List[Dict[str, Any]] = []
        self._number = 0
        self._scan_at = 0.0

    def scan(self, last: bool = False) -> None:
        """Copy what looked the same twice; `last`: the program ended by itself."""
        if not self._pattern or (time.monotonic() < self._scan_at and not last):
            return
        self._scan_at = time.monotonic() + _SCAN_S
        looks = self._looks()
        for name in sorted(looks, key=lambda name: (looks[name][0], name)):
            is_folder = (self._base / name).is_dir()
            quiet = not is_folder or time.time() - looks[name][0] >= _FOLDER_QUIET_S
            settled = last or (quiet and self._last.get(name) == looks[name])
            if settled and self._taken.get(name) != looks[name]:
                self._take(name, looks[name])
        self._last = looks

    def _looks(self) -> Dict[str, Tuple[float, int]]:
        found: Dict[str, Tuple[float, int]] = {}
        if not self._pattern:
            return found
        for path in glob.glob(str(self._base / self._pattern), recursive=True):
            name = os.path.relpath(path, str(self._base))
            look = _look(Path(path))
            is_complete = look and look[1] and not path.endswith(_UNFINISHED)
            if look and is_complete and not self._is_linked(name):
                found[name] = look
        return found

    def _is_linked(self, name: str) -> bool:
        """True when it is or lies below a link, but for folders that the pattern names:
        what is found twice is one checkpoint.
        """
        steps = Path(name).parts
        named = Path(self._pattern or "").parts[:-1]
        place = self._base
        for index, step in enumerate(steps):
            place /= step
            is_named = steps[: index + 1] == named[: index + 1]
            if place.is_symlink() and not is_named:
                return True
        return False

    def _take(self, name: str, look: Tuple[float, int]) -> None:
        source = self._base / name
        copy = _made(self._folder / "checkpoints") / f"{self._number:06d}-{source.name}"
        _remove(copy)
        try:
            if source.is_dir():
                shutil.copytree(str(source), str(copy), symlinks=True)
                _shorten_links(copy, source)
            else:
                shutil.copy2(str(source), str(copy))
            whole = _look(source) == look
        except (OSError, shutil.Error):
            whole = False  # rotated away, or the disk is full: the next scan retries
        if not whole:
            _remove(copy)
            return
        self._number += 1
        self._taken[name] = look
        steps = _STEP.findall(source.name)
        checkpoint = {
            "path": name,
            "step": int(steps[-1]) if steps else None,
            "at": time.time(),
            "file": copy.name,
            "directory": source.is_dir(),
            "size": look[1],
        }
        self._kept.append(checkpoint)
        for old in self._kept[:-_KEPT]:
            _remove(self._folder / "checkpoints" / old["file"])
        self._kept = self._kept[-_KEPT:]
        _write(self._folder / "checkpoints.json", self._kept)


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
    try:
        _unpack(folder)
    except (OSError, tarfile.TarError) as error:
        message = f"the copy of its folder cannot be unpacked: {error}"
        _write_exit(folder, began, "workdir_missing", message=message, exit_code=None)
        return 0
    try:
        checkpoints = Checkpoints(order, folder)
        job.start(folder)
    except (OSError, ValueError) as error:
        reason, message = _explain(error, order)
        _write_exit(folder, began, reason, message=message, exit_code=None)
        return 0
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "") if order.get("gpus") else ""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    place = {"host": host, "gpus": [word for word in given.split(",") if word]}
    _write(folder / "started.json", dict(place, at=began))
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
    passed_on: Set[int] = {_signal_number(save_signal)} if save_signal else set()
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
    checkpoints: Optional[Checkpoints],
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
        if received is None or received.si_signo == signal.SIGCHLD:
            if passed_on and job.must_save():
                job.ask_to_save()
            if job.must_stop(folder):
                job.stop(*_stop_reason(folder, job))
        elif passed_on is None:
            job.stop(*_stop_reason(folder, job))
        elif received.si_signo in passed_on:
            job.ask_to_save()
        elif received.si_signo != signal.SIGUSR1:
            job.stop("passed on", may_save=False)
    # A signal to the whole job may end the program before it arrives here.
    if passed_on is None and not job.stop_reason:
        ended_by_signal = -job.code in _STOP_SIGNALS
        if signal.sigtimedwait(_STOP_SIGNALS, _SIGNAL_LAG_S if ended_by_signal else 0):
            job.stop(*_stop_reason(folder, job))
    job.kill()
    while _reap_children(but=0):
        job.kill()
        time.sleep(0.01)
    if checkpoints:
        checkpoints.scan(last=not job.stop_reason or job.code >= 0)


def _take_secrets(folder: Path) -> Dict[str, str]:
    """The variables with secret values; their file is gone afterwards."""
    path = folder / "secrets.json"
    try:
        found: Dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    path.unlink()
    return found


def _unpack(folder: Path) -> None:
    """Unpack the copy of the job's folder, if one was sent."""
    archive = folder / "work.tar"
    if not archive.exists():
        return
    options: Dict[str, Any] = {}
    # gpuyard made the archive itself; newer Pythons trust only what they are told to.
    if hasattr(tarfile, "fully_trusted_filter"):
        options["filter"] = "fully_trusted"
    with tarfile.open(str(archive)) as content:
        members = content.getmembers()
        for member in members:
            # The archive holds no times, and many programs refuse the year 1970.
            member.mtime = int(time.time())
        content.extractall(str(_made(folder / "work")), members, **options)
    archive.unlink()


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
        _write(folder / "again.json", {"at": time.time(), "job": _job_id()})
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
    _write(folder / "exit.json", dict(times, reason=reason, **facts))


def _environment(order: Dict[str, Any]) -> Dict[str, str]:
    found = {
        name: value for name, value in os.environ.items() if not name.startswith(_OURS)
    }
    found.update(PYTHONUNBUFFERED="1", COLUMNS="200")
    found.update(order.get("environment") or {})
    found.update(order.get("ids") or {})
    if not order.get("gpus"):
        found.update(CUDA_VISIBLE_DEVICES="", ROCR_VISIBLE_DEVICES="")
    elif "CUDA_VISIBLE_DEVICES" in os.environ:
        found["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    return found


def _share_variables() -> Dict[str, str]:
    """The variables by which launchers such as torchrun know which share this is."""
    job = int(os.environ.get("SLURM_JOB_ID", "0"))
    return {
        "NODE_RANK": os.environ.get("SLURM_NODEID", "0"),
        "NNODES": os.environ.get("SLURM_NNODES", "1"),
        "MASTER_PORT": str(20000 + job % 20000),
        "MASTER_ADDR": os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"),
    }


def _look(path: Path) -> Optional[Tuple[float, int]]:
    """When it changed last (UTC seconds), and its size in bytes; None: it is gone.
    Links in a folder do not count.
    """
    try:
        inside = [path]
        if path.is_dir():
            walked = os.walk(str(path))
            inside = [Path(top) / name for top, _, names in walked for name in names]
        files = [file for file in inside if file.is_file() and not file.is_symlink()]
        status = [file.stat() for file in files]
    except OSError:
        return None
    newest = max([item.st_mtime for item in status] or [0.0])
    return newest, sum(item.st_size for item in status)


def _stays_inside(pattern: str) -> bool:
    path = Path(pattern)
    return not path.is_absolute() and ".." not in path.parts


def _shorten_links(copy: Path, source: Path) -> None:
    """Let links that lead into `source` by their whole path lead into its copy."""
    for top, folders, names in os.walk(str(copy)):
        for name in folders + names:
            link = os.path.join(top, name)
            target = os.readlink(link) if os.path.islink(link) else ""
            if target.startswith(str(source) + os.sep):
                inner = str(copy / os.path.relpath(target, str(source)))
                os.unlink(link)
                os.symlink(os.path.relpath(inner, top), link)


def _write(path: Path, value: Any) -> None:
    """Write a JSON file; it appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
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


def _signal_number(name: str) -> int:
    return int(getattr(signal, name if name.startswith("SIG") else "SIG" + name))


def _outlives(pid: int, number: int) -> bool:
    """True if the process catches, blocks or ignores the signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = re.findall(r"Sig(?:Blk|Ign|Cgt):\s*([0-9a-f]+)", status)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def _descendants(root: int) -> List[int]:
    """The pids of every process below `root`, parents first."""
    children: Dict[int, List[int]] = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with suppress(OSError, UnicodeDecodeError):
            text = Path(path).read_text()
            parent = int(text.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(text.split()[0]))
    found = [root]
    for pid in found:  # walks over what it appends, too
        found.extend(children.get(pid, []))
    return found[1:]


def _reap_children(but: int) -> bool:
    """Reap ended children but one: the job's orphans, whose codes do not matter. True
    when there were any children.
    """
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return False
    children = [int(word) for word in text.split()]
    for pid in children:
        if pid != but:
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
    return bool(children)


def main() -> int:
    """Run the attempt or the share of one that the command line names."""
    folder = Path(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_STOP_SIGNALS})
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    return share(folder) if "--share" in sys.argv[2:] else run(folder)


if __name__ == "__main__":
    sys.exit(main())
