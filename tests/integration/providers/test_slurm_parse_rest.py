"""What slurmrestd may answer, odd things too, and what is never sent to it."""

import asyncio
import getpass
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError, ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import JobConfig, JobStatus
from gpuyard.providers.slurm import parse_rest, records
from gpuyard.providers.slurm.config import SlurmSettings
from gpuyard.providers.slurm.provider import SlurmProvider

ME = getpass.getuser()
DOCUMENT = {
    "paths": {
        "/slurm/v0.0.37/jobs": {},
        "/slurm/v0.0.38/jobs": {},
        "/slurm/v9.9.99/jobs": {},
        "/slurmdb/v0.0.39/jobs": {},
    }
}


@pytest.fixture(autouse=True)
def _me(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_USER", raising=False)
    monkeypatch.setenv("SLURM_JWT", "kept.to.itself")


@contextmanager
def answering(
    answer: Callable[[str], tuple[int, object]], asked: list[str]
) -> Iterator[str]:
    """A server in place of slurmrestd; `answer` says what to a path, `asked` gets every
    one.
    """

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(self.path)
            status, body = (
                (200, DOCUMENT) if self.path == "/openapi/v3" else answer(self.path)
            )
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(BrokenPipeError):  # one that has given up
                self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _reply  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def ask(
    home: Path,
    answer: Callable[[str], tuple[int, object]],
    question: Callable[[SlurmProvider], Any],
    asked: list[str] | None = None,
    **more: Any,
) -> Any:
    async def run(place: str) -> Any:
        provider = SlurmProvider({"home": str(home), "rest": place, **more})
        try:
            return await question(provider)
        finally:
            await provider.close()

    with answering(answer, [] if asked is None else asked) as place:
        return asyncio.run(run(place))


def test_the_newest_version_that_both_know_is_spoken_and_one_question_serves_all(
    tmp_path: Path,
) -> None:
    jobs = [
        {
            "job_id": n,
            "job_state": "RUNNING",
            "comment": f"attempt_{n}",
            "user_name": ME,
        }
        for n in range(1, 501)
    ]
    asked: list[str] = []

    async def question(provider: SlurmProvider) -> Any:
        return await provider.poll_jobs([str(n) for n in range(1, 501)])

    assert len(ask(tmp_path, lambda _: (200, {"jobs": jobs}), question, asked)) == 500
    assert asked == ["/openapi/v3", "/slurm/v0.0.38/jobs"]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b"Authentication failure", "SLURM_JWT"),
        (500, b"", "500, and no JSON object"),
        (
            500,
            {
                "errors": [{"error": "Unspecified error", "error_number": -1}],
                "jobs": [],
            },
            "Unspecified error",
        ),
        (200, b"<html>", "no JSON object"),
        (200, [], "no JSON object"),
        (
            200,
            {"errors": [{"description": "Failed while looking for jobs"}], "jobs": []},
            "Failed while looking",
        ),
        (503, {}, "503"),
    ],
)
def test_a_bad_answer_is_one_clear_error_and_never_an_empty_queue(
    tmp_path: Path, status: int, body: object, said: str
) -> None:
    with pytest.raises(ProviderError, match=said) as raised:
        ask(
            tmp_path,
            lambda _: (status, body),
            lambda provider: provider.poll_jobs(["1"]),
        )
    assert raised.value.error_code == "NOT_CONNECTED"
    assert "kept.to.itself" not in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (
            (
                500,
                {
                    "errors": [
                        {
                            "error_code": 2000,
                            "error": "Invalid partition name specified",
                        }
                    ]
                },
            ),
            "REFUSED",
        ),
        (
            (
                400,
                {"errors": [{"error_code": 9001, "error": "Failure during parsing"}]},
            ),
            "REFUSED",
        ),
        (
            (
                500,
                {
                    "errors": [
                        {
                            "error_code": 2014,
                            "error": "Requested node configuration is not available",
                        }
                    ]
                },
            ),
            "INSUFFICIENT_RESOURCES",
        ),
        (
            (500, {"errors": [{"error_number": -1, "error": "Unspecified error"}]}),
            "NOT_CONNECTED",
        ),
        (
            (
                500,
                {
                    "errors": [
                        {
                            "error_number": 1800,
                            "error": (
                                "Unable to contact slurm controller (connect failure)"
                            ),
                        }
                    ]
                },
            ),
            "NOT_CONNECTED",
        ),
        ((200, {"errors": []}), "NOT_CONNECTED"),
        ((200, {"errors": [], "job_id": "7"}), "NOT_CONNECTED"),
        ((200, {"errors": None, "job_id": 0}), "NOT_CONNECTED"),
    ],
)
def test_only_what_slurm_itself_refuses_is_refused(
    tmp_path: Path, answer: tuple[int, object], code: str
) -> None:
    """Anything else may have been carried out, and is asked after before it is sent
    again.
    """
    config = JobConfig(name="j", command=("true",), attempt_id=new_id("attempt"))
    with pytest.raises(ProviderError) as raised:
        ask(
            tmp_path,
            lambda path: answer if path.endswith("submit") else (200, {}),
            lambda p: p.submit_job(config),
        )
    assert raised.value.error_code == code


def test_one_that_hangs_is_given_up(tmp_path: Path) -> None:
    def answer(_: str) -> tuple[int, object]:
        time.sleep(1)
        return 200, {}

    with pytest.raises(ProviderError, match=r"within 0\.2 s") as raised:
        ask(
            tmp_path,
            answer,
            lambda provider: provider.poll_jobs(["1"]),
            timeout_s=0.2,
            rest_version="v0.0.38",
        )
    assert raised.value.error_code == "TIMEOUT"


def test_nobody_there_is_not_connected(tmp_path: Path) -> None:
    provider = SlurmProvider(
        {"home": str(tmp_path), "rest": f"unix://{tmp_path}/nobody"}
    )
    with pytest.raises(ProviderError, match="cannot be reached") as raised:
        asyncio.run(provider.poll_jobs(["1"]))
    assert raised.value.error_code == "NOT_CONNECTED"


def test_an_interface_of_another_age_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DOCUMENT, "paths", {"/slurm/v0.0.50/jobs": {}, "/ping": {}})
    with pytest.raises(
        ProviderError, match=r"slurmrestd speaks v0\.0\.50; known are v0\.0\.38"
    ):
        ask(tmp_path, lambda _: (200, {}), lambda provider: provider.poll_jobs(["1"]))
    assert parse_rest.read_versions({"paths": None}) == set()


def test_jobs_are_read_and_odd_ones_are_skipped() -> None:
    waits = {
        "job_id": 8,
        "array_job_id": 8,
        "array_task_string": "2-4,9%3",
        "job_state": "PENDING",
        "user_name": ME,
        "state_reason": "Resources",
        "start_time": 1700000000,
        "comment": "array_a",
    }
    odd = [
        None,
        7,
        "x",
        {},
        {"job_id": 1},
        {"job_state": "RUNNING", "user_name": ME},
        {"job_id": "5", "job_state": "RUNNING", "user_name": ME},
        {"job_id": 6, "job_state": None, "user_name": ME},
        {"job_id": 6, "job_state": ["RUNNING"], "user_name": ME},
    ]
    other = {"job_id": 3, "job_state": "RUNNING", "user_name": "somebody"}
    plain = {
        "job_id": 4,
        "job_state": "FAILED",
        "user_name": ME,
        "exit_code": 3 << 8,
        "end_time": 1700000009,
        "array_job_id": 0,
        "array_task_id": None,
        "state_reason": "NonZeroExitCode",
    }
    one = {
        "job_id": 12,
        "array_job_id": 8,
        "array_task_id": 1,
        "job_state": "RUNNING",
        "user_name": ME,
        "start_time": 1700000000,
        "nodes": "node1",
        "state_reason": "None",
    }
    rows = parse_rest.read_jobs({"jobs": [waits, *odd, other, plain, one]}, ME)
    assert [row.job_id for row in rows] == ["8_2", "8_3", "8_4", "8_9", "4", "8_1"]
    assert (rows[0].status, rows[0].started_at, rows[0].reason) == (
        JobStatus.PENDING,
        None,
        "Resources",
    )
    assert (rows[4].exit_code, rows[4].signal, rows[4].ended_at) == (
        3,
        None,
        1700000009,
    )
    assert (rows[5].status, rows[5].started_at, rows[5].nodes) == (
        JobStatus.RUNNING,
        1700000000,
        "node1",
    )
    assert (
        parse_rest.read_jobs({}, ME)
        == parse_rest.read_jobs({"jobs": {"a": 1}}, ME)
        == []
    )


def test_an_array_whose_list_is_cut_off_or_goes_by_steps_waits_whole() -> None:
    """slurmrestd cuts the list after 64 letters: nobody in the rest of it is taken for
    gone.
    """
    base = {"job_id": 8, "array_job_id": 8, "job_state": "PENDING", "user_name": ME}
    stepped = {**base, "array_task_string": "1-5:2"}
    cut = {**base, "array_task_string": "1,33,..."}
    assert [row.job_id for row in parse_rest.read_jobs({"jobs": [stepped]}, ME)] == [
        "8_1",
        "8_3",
        "8_5",
    ]
    rows = parse_rest.read_jobs({"jobs": [cut]}, ME)
    assert [row.job_id for row in rows] == [
        "8_1",
        "8_33",
        records.unlisted_jobs("8_70"),
    ]
    assert rows[-1].status is JobStatus.PENDING


def test_hardware_is_read_and_odd_nodes_are_skipped() -> None:
    good = {
        "name": "n1",
        "cpus": 8,
        "real_memory": 2048,
        "gres": "gpu:a100:2",
        "state": "idle",
        "partitions": ["gpu"],
    }
    drained = {**good, "name": "n2", "state": "mixed", "state_flags": ["DRAIN"]}
    nodes = {
        "nodes": [
            good,
            drained,
            {**good, "cpus": None},
            {**good, "partitions": ["gone"]},
            "odd",
            {},
        ]
    }
    partitions = {
        "partitions": [
            {"name": "gpu", "flags": ["default"], "max_time_limit": 60},
            {},
            None,
        ]
    }
    (item,) = parse_rest.read_hardware(nodes, partitions, None)
    assert (item.nodes, item.up, item.gpu, item.gpus, item.default, item.limit_s) == (
        2,
        1,
        "a100",
        2,
        True,
        3600,
    )
    assert parse_rest.read_hardware(nodes, partitions, "cpu") == []
    assert parse_rest.read_usable_nodes(nodes, None) == {"n1"}
    (item,) = parse_rest.read_hardware(
        {"nodes": [drained]},
        {"partitions": [{"name": "gpu", "max_time_limit": -1}]},
        None,
    )
    assert (item.limit_s, item.why_down) == (None, "all its nodes are drain")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"sbatch_options": ["--exclusive"]}, "sbatch_options"),
        ({"rest_version": "v0.0.1"}, "rest_version"),
        ({"rest": "/run/socket"}, "rest"),
        ({"rest": "http://me:word@host"}, "rest"),
        ({"environment": {"SLURM_JWT": "x"}}, "environment"),
    ],
)
def test_what_it_cannot_carry_is_refused_at_the_start(
    wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInputError) as raised:
        SlurmSettings.read(
            {"home": "/", "rest": "unix:///run/slurmrestd.sock", **wrong}
        )
    assert [fault.field for fault in raised.value.faults] == [field]
