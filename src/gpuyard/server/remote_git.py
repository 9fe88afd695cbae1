"""The files of a commit of a git repository, fetched by the server for who submits from
a browser.

The server is inside the lab's network and whoever asks may not be, so it fetches less
than git does for `gpuyard run --git`: over HTTPS only, from addresses of the public
internet or from hosts that the settings name, and without keys, cookies or redirects.
A name is looked up once, so that it cannot mean something else a moment later. Nothing
of a commit is written as files here or run: no hooks, filters or submodules.
"""

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuyard.config.git import GitSettings
from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.public_addresses import is_public

# A spec may have a million bytes, and in base64 files are a third larger.
MOST_FILES_BYTES = 700_000
_MOST_FILES = 2_000
_MOST_FETCHED_BYTES = 100_000_000
_FETCH_S = 60.0
# What `ulimit -f` counts.
_BLOCK_BYTES = 512
_LONGEST_SAID = 200
_HTTPS_PORT = 443
_LONGEST_LABEL = 200
_LFS = b"version https://git-lfs.github.com/spec/"
# Earlier ones do not heed the address that they are told, and look it up again.
_OLDEST_GIT = (2, 37)
_URL = re.compile(
    r"https://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?/[\w./~%+-]+",
    re.ASCII | re.IGNORECASE,
)
_REF = re.compile(r"(?!.*(\.\.|@\{))[\w@][\w@./+-]{0,199}", re.ASCII)
_UNSAFE_PARTS = frozenset({"", ".", "..", ".git"})
_OPTIONS = {
    "protocol.allow": "never",
    "protocol.https.allow": "always",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "20",
    "credential.helper": "",
    "core.askPass": "true",
    # One file of limited size, instead of one for each object.
    "fetch.unpackLimit": "1",
    "core.bigFileThreshold": "1m",
}
_ENTRY = re.compile(rb"(\d+) (\w+) ([0-9a-f]+) +(-|\d+)\t(.*)", re.DOTALL)
_MOVED = re.compile(r"returned error: 30\d")
_FILE = b"100"
_LINK = b"120000"
_ELSE = "use `gpuyard run --git`, which fetches it on your machine"


@dataclass(frozen=True, slots=True)
class RemoteCommit:
    """A repository's URL, a branch, tag or commit of it (empty: its HEAD), and a folder
    in it (empty: its top).
    """

    url: str
    ref: str = ""
    folder: str = ""

    def __post_init__(self) -> None:
        """InvalidInputError for what is none."""
        if not _is_address(self.url):
            remedy = "write https://HOST/PATH, without a user or a password"
            raise InvalidInputError.of("url", f"is {quoted(self.url)}", remedy)
        if self.ref and not _REF.fullmatch(self.ref):
            remedy = "name a branch, a tag or a whole commit"
            raise InvalidInputError.of("ref", f"is {quoted(self.ref)}", remedy)
        parts = self.folder.strip("/").split("/") if self.folder else []
        if not _UNSAFE_PARTS.isdisjoint(parts) or "\0" in self.folder:
            remedy = "name a folder of the repository, such as examples/train"
            raise InvalidInputError.of("folder", f"is {quoted(self.folder)}", remedy)

    @property
    def host(self) -> str:
        """Where the repository is: a name or an address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Where its server listens."""
        return urlsplit(self.url).port or _HTTPS_PORT

    def label(self, commit: str) -> str:
        """The commit in words, as `gpuyard run --git` labels a job with it."""
        return f"{self.url}@{commit[:12]}"[-_LONGEST_LABEL:]


def _is_address(url: str) -> bool:
    try:
        return _URL.fullmatch(url) is not None and urlsplit(url).port != 0
    except ValueError:  # no port, or no address, is so high
        return False


@dataclass(frozen=True, slots=True)
class FetchedCommit:
    """The id of a commit and its files by path; `notes` say what is missing of it."""

    commit: str
    files: Mapping[str, bytes]
    notes: Sequence[str]


def fetch(
    source: RemoteCommit, settings: GitSettings, within_s: float = _FETCH_S
) -> FetchedCommit:
    """All files of a commit, or of its folder; InvalidInputError if it cannot be had,
    or is more than goes with a job.
    """
    options = {**_OPTIONS, **_route(source, settings)}
    with tempfile.TemporaryDirectory(prefix="gpuyard-git-") as folder:
        git = _Git(Path(folder), options, time.monotonic() + within_s)
        git.check_version()
        git.run("init", "--quiet", "--bare")
        ref = source.ref or "HEAD"
        flags = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules")
        git.run("fetch", *flags, "--", source.url, ref)
        commit = git.run("rev-parse", "--verify", "FETCH_HEAD^{commit}").decode()
        return _read(git, source, commit.strip())


def _route(source: RemoteCommit, settings: GitSettings) -> Mapping[str, str]:
    """Options of git with which it goes to an address that is allowed, and to no
    other.
    """
    is_internal = source.host in settings.internal_hosts
    try:
        found = socket.getaddrinfo(source.host, source.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        fault = f"names a host that is not found: {source.host}"
        raise InvalidInputError.of("url", fault, "check the address") from error
    addresses = [str(address[0]) for *_, address in found]
    allowed = [one for one in addresses if is_internal or is_public(one)]
    if not allowed:
        fault = f"is at no address of the public internet: {source.host}"
        remedy = "an administrator can add it to internal_hosts in [git]"
        raise InvalidInputError.of("url", fault, remedy)
    listed = ",".join(f"[{one}]" if ":" in one else one for one in allowed)
    route = {"http.curloptResolve": f"{source.host}:{source.port}:{listed}"}
    if is_internal and settings.ca_file:
        route["http.sslCAInfo"] = str(settings.ca_file)
    return route


class _Git:
    """Git in a folder of its own, with no settings but `options`, until `ends_at`."""

    def __init__(
        self, folder: Path, options: Mapping[str, str], ends_at: float
    ) -> None:
        self._folder = folder
        self._ends_at = ends_at
        self._options = [
            word
            for name, value in options.items()
            for word in ("-c", f"{name}={value}")
        ]

    def check_version(self) -> None:
        """InvalidInputError if git is missing here, or too old to be held to an
        address.
        """
        numbers = re.findall(r"\d+", self.run("version").decode())
        if tuple(map(int, numbers[:2])) < _OLDEST_GIT:
            fault = "cannot be fetched: the server has a git before 2.37"
            raise InvalidInputError.of("url", fault, _ELSE)

    def run(self, *words: str, given: bytes = b"") -> bytes:
        """What git prints; InvalidInputError with its own words."""
        blocks = _MOST_FETCHED_BYTES // _BLOCK_BYTES
        limited = f'ulimit -f {blocks} && exec git "$@"'
        output = self._folder / "output"
        with output.open("w+b") as written:
            process = subprocess.Popen(
                ["sh", "-c", limited, "git", *self._options, *words],
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=written,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            (_, said) = self._wait(process, given)
            if process.returncode:
                raise _refused(said.decode(errors="replace"))
            written.seek(0)
            return written.read()

    def _wait(
        self, process: subprocess.Popen[bytes], given: bytes
    ) -> tuple[bytes, bytes]:
        try:
            return process.communicate(given, self._ends_at - time.monotonic())
        except subprocess.TimeoutExpired:
            fault = "is not fetched in time"
            raise InvalidInputError.of("url", fault, _ELSE) from None
        finally:
            # Whatever has ended it, git's helpers end, too.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._folder),
            "GIT_DIR": str(self._folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }


def _refused(said: str) -> InvalidInputError:
    """The error for what git has said in the end."""
    if "File too large" in said or f"signal {signal.SIGXFSZ.value}" in said:
        megabytes = _MOST_FETCHED_BYTES // 1_000_000
        return InvalidInputError.of("url", f"has more than {megabytes} MB", _ELSE)
    lines = said.strip().splitlines() or ["git failed"]
    last = next((line for line in lines if "fatal:" in line), lines[-1])
    remedy = "check the address, and the branch, tag or commit; it must be public"
    if _MOVED.search(said):
        remedy = "it has moved: give its new address"
    return InvalidInputError.of(
        "url", f"cannot be fetched: {last[:_LONGEST_SAID]}", remedy
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file of a commit: its kind as git writes it, its id and size in bytes."""

    mode: bytes
    object_id: bytes
    size: int
    path: str


def _read(git: _Git, source: RemoteCommit, commit: str) -> FetchedCommit:
    tree = f"{commit}:{source.folder.strip('/')}"
    try:
        listed = git.run("ls-tree", "-r", "-z", "-l", tree)
    except InvalidInputError as error:
        remedy = "name a folder of the repository, relative to its top"
        fault = f"is {quoted(source.folder)}, not in it"
        raise InvalidInputError.of("folder", fault, remedy) from error
    entries = [_entry_of(line) for line in listed.split(b"\0") if line]
    files = [entry for entry in entries if entry.mode.startswith(_FILE)]
    _check_size(files)
    asked = b"".join(entry.object_id + b"\n" for entry in files)
    contents = _contents(git.run("cat-file", "--batch", given=asked), files)
    return FetchedCommit(commit, contents, list(_notes(entries, contents)))


def _entry_of(line: bytes) -> _Entry:
    found = _ENTRY.fullmatch(line)
    assert found, line
    (mode, _, object_id, size, raw) = found.groups()
    path = raw.decode(errors="replace")
    if not _UNSAFE_PARTS.isdisjoint(path.lower().split("/")):
        raise InvalidInputError.of("url", f"holds the path {quoted(path)}", _ELSE)
    return _Entry(mode, object_id, 0 if size == b"-" else int(size), path)


def _check_size(files: Sequence[_Entry]) -> None:
    size = sum(entry.size for entry in files)
    if size <= MOST_FILES_BYTES and len(files) <= _MOST_FILES:
        return
    fault = f"has {len(files)} files with {size / 1e6:.1f} MB; {_MOST_FILES} with"
    fault += f" {MOST_FILES_BYTES / 1e6:g} MB can go with a job"
    remedy = "name a folder of it, or use `gpuyard run --git`"
    raise InvalidInputError.of("folder", fault, remedy)


def _contents(printed: bytes, files: Sequence[_Entry]) -> Mapping[str, bytes]:
    """By path what `git cat-file --batch` has printed: for each file a line, its
    content, and the end of a line.
    """
    contents: dict[str, bytes] = {}
    at = 0
    for entry in files:
        begin = printed.index(b"\n", at) + 1
        at = begin + entry.size + 1
        contents[entry.path] = printed[begin : at - 1]
    return contents


def _notes(entries: Sequence[_Entry], contents: Mapping[str, bytes]) -> Iterator[str]:
    missing = {
        "submodules are not fetched": [
            entry.path for entry in entries if not entry.mode.startswith((_FILE, _LINK))
        ],
        "symbolic links are left out": [
            entry.path for entry in entries if entry.mode == _LINK
        ],
        "of files in Git LFS there is only the pointer": [
            path for path, content in contents.items() if content.startswith(_LFS)
        ],
    }
    for words, paths in missing.items():
        if paths:
            more = "" if len(paths) <= 5 else f" and {len(paths) - 5} more"
            yield f"{words}: {', '.join(paths[:5])}{more}"
