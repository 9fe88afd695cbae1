"""What `gpuyard doctor` looks at: home, disk, ledger, server, storage, agent, GPUs,
limits, other providers, webhooks, and what keeps jobs apart.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.config.paths import Home
from gpuyard.config.shared import SharedInstance
from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.own_nodes import OWN_NODES

if TYPE_CHECKING:
    from gpuyard.client.calls import Call

_LOW_DISK_GB = 5.0


@dataclass(frozen=True, slots=True)
class CheckupResult:
    """One check: what was looked at, whether it is in order, what was found, what to
    do.
    """

    what: str
    ok: bool
    found: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON-able data."""
        return asdict(self)


def examine() -> list[CheckupResult]:
    """Every check, in the order in which they depend on each other."""
    from gpuyard.client.connection import used_instance

    home = Home.find()
    if shared := used_instance():
        # Home, disk and settings are the administrator's.
        asked = (_server, _storage, _agent, _providers, _webhooks)
        found = [_python(home), _shared(shared), *(check(home) for check in asked)]
        return [*found, _separation_of_shared(home, shared)]
    checks: tuple[Callable[[Home], CheckupResult], ...] = (
        _python,
        _settings,
        _home,
        _filesystem,
        _disk,
        _gpus,
        _ledger,
        _server,
        _storage,
        _agent,
        _providers,
        _webhooks,
        _separation,
    )
    return [check(home) for check in checks]


def _python(_home: Home) -> CheckupResult:
    ok = sys.version_info >= (3, 11) and sys.platform == "linux"
    return CheckupResult(
        "python",
        ok,
        f"{platform.python_version()} on {sys.platform}",
        "" if ok else "use Linux, Python 3.11+",
    )


def _settings(home: Home) -> CheckupResult:
    """All that a server reads when it starts: it looks itself."""
    command = [sys.executable, "-m", "gpuyard.server", "--home", str(home.root)]
    done = subprocess.run(
        [*command, "--check"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = done.stderr.strip().removeprefix("gpuyard: ")
        return CheckupResult("settings", False, said, f"correct {home.settings}")
    return CheckupResult(
        "settings", True, str(home.settings) if home.settings.exists() else "defaults"
    )


def _home(home: Home) -> CheckupResult:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    fault = ""
    if not folder.is_dir():
        fault = "is not a folder"
    elif not os.access(folder, os.W_OK):
        fault = "is not writable"
    return CheckupResult(
        "home",
        not fault,
        str(home.root),
        f"{folder} {fault}: set GPUYARD_HOME" if fault else "",
    )


def _filesystem(home: Home) -> CheckupResult:
    from gpuyard.config.netfs import network_filesystem

    kind = network_filesystem(home.ledger)
    remedy = (
        "SQLite can lose data there: set GPUYARD_HOME to a local disk" if kind else ""
    )
    return CheckupResult("file system", kind is None, kind or "local", remedy)


def _disk(home: Home) -> CheckupResult:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free_gb = shutil.disk_usage(folder).free / 1e9
    kept = {
        name: _size_gb(path)
        for name, path in (
            ("checkpoints", home.blobs),
            ("logs and jobs", home.node),
            ("reserve", home.reserve),
        )
    }
    found = f"{free_gb:.1f} GB free; kept: " + ", ".join(
        f"{name} {gb:.2f} GB" for name, gb in kept.items()
    )
    is_low = free_gb <= _LOW_DISK_GB
    remedy = "free some space" if is_low else ""
    problem = _disk_problem(home)
    if problem:
        remedy = "end that job, or free some space"
        return CheckupResult("disk", False, f"{found}; {problem}", remedy)
    return CheckupResult("disk", not is_low, found, remedy)


def _disk_problem(home: Home) -> str | None:
    """What the node of this home says of its disk when it is nearly full."""
    from gpuyard.cli.session import connect
    from gpuyard.client import calls
    from gpuyard.client.connection import running_server, stopped_server

    if running_server(home) is None or stopped_server(home):
        return None
    try:
        with connect(start=False) as client:
            nodes = client.call(calls.listing("nodes"))
    except GpuyardError:
        return None  # the check of the server says it
    disks = [disk for node in nodes if (disk := node.get("disk"))]
    own = (disk for disk in disks if disk["folder"] == str(home.root))
    return next((disk["problem"] for disk in own), None)


def _size_gb(path: Path) -> float:
    """What a file, or all files of a folder, take of the disk."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file()) / 1e9


def _gpus(home: Home) -> CheckupResult:
    from gpuyard.cli.dashboard import gpu_warnings
    from gpuyard.devices.discovery import discover

    found = discover()
    names = (
        ", ".join(f"{gpu.name} ({gpu.memory_total_mb} MB)" for gpu in found.gpus)
        or "none"
    )
    lost = "; ".join(gpu.reason for gpu in found.lost)
    if found.gpus:
        names = f"{names} by {found.source}"
    known = _gpus_of_server(home)
    if known and not found.gpus:
        names = f"none of this machine's; the server has {_kinds(known)}"
    names = "; ".join([names, *gpu_warnings(known or ())])
    have = len(found.gpus) if known is None else len(known)
    problem = found.problem or lost or _too_few_gpus(home, have)
    return CheckupResult("GPUs", not problem, names, problem)


def _gpus_of_server(home: Home) -> list[dict[str, Any]] | None:
    """The GPUs that the server knows, which may be simulated or of other machines; None
    if none runs, or it does not answer, which its own check says.
    """
    from gpuyard.cli.session import connect
    from gpuyard.client import calls
    from gpuyard.client.connection import running_server, stopped_server

    if running_server(home) is None or stopped_server(home):
        return None
    try:
        with connect(start=False) as client:
            return client.call(calls.listing("gpus"))
    except GpuyardError:
        return None


def _kinds(gpus: Sequence[dict[str, Any]]) -> str:
    """How many there are of each kind: `2 × Simulated GPU`."""
    counts = Counter(str(gpu["name"]) for gpu in gpus)
    return ", ".join(f"{number} × {name}" for name, number in counts.items())


def _too_few_gpus(home: Home, found: int) -> str:
    """What to do if there are fewer GPUs than the settings expect."""
    from gpuyard.config.settings import load_settings

    try:
        expected = load_settings(home).resource_manager.gpu_count or 0
    except GpuyardError:
        return ""  # the check of the settings says it
    if found >= expected:
        return ""
    return (
        f"resource_manager.gpu_count says {expected}, and {found} are here: look at"
        " `gpuyard gpus`, or correct it"
    )


def _ledger(home: Home) -> CheckupResult:
    """Only a file is looked through: PostgreSQL has tools of its own."""
    from gpuyard.config.database import find_database, shown
    from gpuyard.config.settings import load_settings

    try:
        where = find_database(home, load_settings(home).ledger.url)
    except GpuyardError as error:
        return CheckupResult("ledger", False, str(error), "correct the setting")
    if not isinstance(where, Path):
        return CheckupResult("ledger", True, f"in PostgreSQL, {shown(where)}")
    if not where.exists():
        return CheckupResult("ledger", True, "none yet")
    from gpuyard.ledger.faults import HOW_TO_RESTORE
    from gpuyard.ledger.pages import damage_of

    try:
        fault = damage_of(where)
    except GpuyardError as error:
        return CheckupResult("ledger", False, str(error), "see `dmesg`")
    if fault:
        return CheckupResult("ledger", False, f"damaged: {fault}", HOW_TO_RESTORE)
    return CheckupResult("ledger", True, str(where))


def _server(home: Home) -> CheckupResult:
    from gpuyard import __version__
    from gpuyard.client import calls
    from gpuyard.client.connection import running_server, used_instance

    def judge(found: Any) -> CheckupResult:
        if found["version"] == __version__:
            address = running_server(home)
            return CheckupResult("server", True, address.url if address else "runs")
        versions = f"has version {found['version']}, this command {__version__}"
        remedy = "gpuyard down --running leave; gpuyard up"
        if used_instance():
            remedy = "an administrator restarts it: systemctl restart gpuyard"
        return CheckupResult("server", False, versions, remedy)

    without = "not running; the first command starts it"
    return _ask(home, "server", calls.about(), judge, without)


def _storage(home: Home) -> CheckupResult:
    """Only the server is asked: the credentials of a bucket are in its environment and
    need not be in ours.
    """
    from gpuyard.client import calls

    def judge(found: Any) -> CheckupResult:
        if not found["problem"]:
            return CheckupResult("storage", True, str(found["place"]))
        remedy = (
            "checkpoints cannot be kept: see [storage] in the settings, and the"
            " server's environment"
        )
        return CheckupResult("storage", False, str(found["problem"]), remedy)

    return _ask(home, "storage", calls.storage(), judge)


def _agent(home: Home) -> CheckupResult:
    from gpuyard import __version__
    from gpuyard.client import calls

    def judge(found: Any) -> CheckupResult:
        health = next(item for item in found if item["name"] == OWN_NODES)
        if health["status"] != "healthy":
            remedy = f"see {home.logs / 'node.log'}"
            return CheckupResult("agent", False, health["status"], remedy)
        if version := _other_agent(home):
            said = f"healthy, but has version {version}, this command {__version__}"
            remedy = "gpuyard down, once its jobs have ended; then gpuyard up"
            return CheckupResult("agent", False, said, remedy)
        return CheckupResult("agent", True, "healthy")

    without = "not running; starts with the server"
    return _ask(home, "agent", calls.listing("providers"), judge, without)


def _other_agent(home: Home) -> str:
    """The version of this home's agent, if it is not ours; an agent that was left with
    running jobs may be older.
    """
    from gpuyard import __version__

    try:
        version = home.agent_version.read_text()
    except OSError:
        return ""
    return "" if version == __version__ else version


def _providers(home: Home) -> CheckupResult:
    """The configured clusters and clouds; the agent has a check of its own."""
    from gpuyard.client import calls

    def judge(found: Any) -> CheckupResult:
        others = [row for row in found if row["name"] != OWN_NODES]
        faults = [
            f"{row['name']} is {row['status']}: {row.get('message') or 'no reason'}"
            for row in others
            if row["status"] != "healthy"
        ]
        if faults:
            remedy = "correct what it says; `gpuyard providers` looks again"
            return CheckupResult("providers", False, "; ".join(faults), remedy)
        names = ", ".join(row["name"] for row in others)
        return CheckupResult("providers", True, names or "none configured")

    return _ask(home, "providers", calls.listing("providers"), judge)


def _webhooks(home: Home) -> CheckupResult:
    from gpuyard.client import calls

    def judge(hooks: Any) -> CheckupResult:
        faults = [
            f"{hook['webhook']} did not take {hook['dead_letters']['count']} events"
            f" (last: {hook['dead_letters']['latest'][-1]['why']})"
            for hook in hooks
            if hook["dead_letters"]["count"]
        ]
        if not faults:
            return CheckupResult("webhooks", True, f"{len(hooks)} configured")
        remedy = "correct the receiver; GET /api/v1/webhooks lists the last of them"
        return CheckupResult("webhooks", False, "; ".join(faults), remedy)

    return _ask(home, "webhooks", calls.listing("webhooks"), judge)


def _ask(
    home: Home,
    what: str,
    call: "Call[Any]",
    judge: Callable[[Any], CheckupResult],
    without: str = "not looked at: the server does that",
) -> CheckupResult:
    """What `judge` makes of the server's answer; `without` is said when none runs."""
    from gpuyard.cli.session import connect
    from gpuyard.client.connection import (
        running_server,
        stopped_server,
        used_instance,
    )

    if running_server(home) is None and used_instance() is None:
        return CheckupResult(what, True, without)
    if used_instance() is None and (process := stopped_server(home)):
        found = f"the server (process {process}) is stopped, so it answers nothing"
        return CheckupResult(what, False, found, f"kill -CONT {process}")
    try:
        with connect(start=False) as client:
            found = client.call(call)
    except GpuyardError as error:
        return CheckupResult(what, False, str(error), f"see {home.logs / 'server.log'}")
    return judge(found)


def _shared(shared: SharedInstance) -> CheckupResult:
    """The server that the users of this machine share, and what they agree to."""
    try:
        shared.check()
    except GpuyardError as error:
        return CheckupResult("shared", False, error.message, error.remedy)
    found = (
        f"at {shared.socket}, for the group {shared.group}, which is one trust domain:"
        " each member sees and may cancel the jobs of all"
    )
    return CheckupResult("shared", True, found)


def _separation_of_shared(home: Home, shared: SharedInstance) -> CheckupResult:
    """What keeps the jobs of the members apart."""
    from gpuyard.client import calls

    def judge(nodes: Any) -> CheckupResult:
        kinds = sorted({str(node["separation"]) for node in nodes})
        if not kinds:
            return CheckupResult("separation", True, "no node is connected")
        if kinds == ["agreement"]:
            found = f"by agreement: all jobs run as {shared.account}"
            return CheckupResult("separation", True, found)
        found = f"by {', '.join(kinds)}: each job runs under its submitter's account"
        return CheckupResult("separation", True, found)

    return _ask(home, "separation", calls.listing("nodes"), judge)


def _separation(home: Home) -> CheckupResult:
    """What keeps the jobs of this machine apart."""
    from gpuyard.config.accounts import Accounts
    from gpuyard.config.settings import load_settings

    try:
        accounts = Accounts.of(load_settings(home).node)
    except GpuyardError as error:
        return CheckupResult("separation", False, str(error), "correct the setting")
    if accounts:
        return CheckupResult("separation", True, _separation_of_node(home))
    user = "root" if os.getuid() == 0 else "one user"
    remedy = "to change that, run gpuyard as root with [node] run_as or accounts"
    found = f"by agreement: all jobs run as {user}, as the agent does"
    return CheckupResult("separation", True, found, remedy)


def _separation_of_node(home: Home) -> str:
    """What the agent has found possible; without a server nobody asks it."""
    from gpuyard.cli.session import connect
    from gpuyard.client import calls
    from gpuyard.client.connection import running_server, stopped_server

    file = home.node / "id"
    is_away = running_server(home) is None or stopped_server(home)
    if is_away or not file.exists():
        return "by accounts; the agent tells whether by devices too"
    with connect(start=False) as client:
        nodes = client.call(calls.listing("nodes"))
    own = [node for node in nodes if node["id"] == file.read_text().strip()]
    found = own[0]["separation"] if own else None
    return f"by {found}" if found else "by accounts; the agent is not connected"
