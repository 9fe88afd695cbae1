"""`/api/v1/git-commits`: the code of a commit, to submit it from a browser."""

import asyncio
import base64
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gpuyard.domain.errors import TooManyRequestsError
from gpuyard.domain.strict_model import StrictModel
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.remote_git import FetchedCommit, RemoteCommit, fetch

router = api_router("/git-commits", tag="git commits")

_AT_ONCE = 2
_MOST_WAITING = 8
_threads = ThreadPoolExecutor(_AT_ONCE, "git")
_running: set[asyncio.Future[FetchedCommit]] = set()
_JOB_FILE = "job.toml"
_Text = Annotated[str, Field(max_length=1_000)]


class WantedCommit(StrictModel):
    """The HTTPS address of a repository; a branch, a tag or a whole commit of it
    (empty: its HEAD); and a folder in it (empty: its top).
    """

    url: _Text
    ref: _Text = ""
    folder: _Text = ""


class GitCommit(BaseModel):
    """A commit: `label` is what a job of it is labelled with, `spec` the JobSpec that
    its `job.toml` gives (empty without one), `files` are texts by path, and `binary`
    the other files, in base64. `notes` say what is missing.
    """

    commit: str
    label: str
    spec: dict[str, Any]
    files: dict[str, str]
    binary: dict[str, str]
    notes: list[str]


@router.post("")
async def fetch_commit(app_state: TheAppState, wanted: WantedCommit) -> GitCommit:
    """The files of a commit, fetched now; all of them together fit into a job."""
    source = RemoteCommit(wanted.url, wanted.ref, wanted.folder)
    if len(_running) >= _AT_ONCE + _MOST_WAITING:
        raise TooManyRequestsError(
            "Many repositories are being fetched.", "Ask again in a moment."
        )
    loop = asyncio.get_running_loop()
    fetching = loop.run_in_executor(_threads, fetch, source, app_state.settings.git)
    _running.add(fetching)
    fetching.add_done_callback(_running.discard)
    return _answer(source, await fetching)


def _answer(source: RemoteCommit, fetched: FetchedCommit) -> GitCommit:
    texts: dict[str, str] = {}
    binary: dict[str, str] = {}
    for path, content in fetched.files.items():
        try:
            texts[path] = content.decode()
        except UnicodeDecodeError:
            binary[path] = base64.b64encode(content).decode()
    notes = list(fetched.notes)
    return GitCommit(
        commit=fetched.commit,
        label=source.label(fetched.commit),
        spec=_spec_in(texts, notes),
        files=texts,
        binary=binary,
        notes=notes,
    )


def _spec_in(texts: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    """What the job file says; a note where nobody can read it."""
    try:
        return tomllib.loads(texts.get(_JOB_FILE, ""))
    except tomllib.TOMLDecodeError as error:
        notes.append(f"{_JOB_FILE} is not read: {error}")
        return {}
