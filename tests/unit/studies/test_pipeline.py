"""A study's way through an instance, which is played by a small one of its own: jobs by
key, and results as ranks write them.
"""

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.client.connection import Address
from gpuyard.client.sync import Client
from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies.manifest import RunManifest
from gpuyard.studies.pipeline import (
    DistributedExperimentPipeline,
    collect_results,
    is_running,
)
from gpuyard.studies.report import load_summary, write_report
from gpuyard.studies.study import Study
from tests.support.study_run import Layout, metrics, row
from tests.unit.studies.folders import make_study

ONE = '[[strategies]]\nkind = "custom"\n'
TWO = ONE + '[[strategies]]\nkind = "tensor_single_node"\ngpus_per_node = 2\n'


class Instance:
    """Takes jobs and has each done at the first look at it, with the `end` that is set
    and, unless it is `silent`, with results; `refuse` has reasons by a job's name.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.refuse: dict[str, str] = {}
        self.silent = False
        self.end: dict[str, Any] = {"state": "completed", "exit_code": 0}
        self.before_looking: Callable[[], None] = lambda: None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return self._take(json.loads(request.content))
        self.before_looking()
        (job,) = [
            job
            for job in self.jobs.values()
            if job["id"] == request.url.path.rpartition("/")[2]
        ]
        if not self.silent:
            answer(Path(job["workdir"]))
        return httpx.Response(200, json=_shown(job) | self.end)

    def _take(self, spec: dict[str, Any]) -> httpx.Response:
        if fault := self.refuse.get(spec["name"]):
            return httpx.Response(
                422,
                json={"code": "insufficient_resources", "detail": fault, "status": 422},
            )
        new = {"id": f"job_{len(self.jobs) + 1}", **spec}
        return httpx.Response(
            201, json=_shown(self.jobs.setdefault(spec["idempotency_key"], new))
        )


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": job["id"],
        "name": job["name"],
        "kind": "command",
        "state": "queued",
        "priority": 3,
        "created_at": 1.0,
        "provider_ref": job["id"].removeprefix("job_"),
    }


def answer(folder: Path) -> None:
    """Leave what the ranks of a job would."""
    config = json.loads((folder / "exp_config.json").read_text())
    layout = Layout(
        config["strategy_id"],
        "custom",
        config["tp_size"],
        config["pp_size"],
        config["dp_size"],
    )
    rows = [
        row(layout, prompt)
        for prompt in pq.read_table(folder.parent / "prompts.parquet").to_pylist()
    ]
    for rank in range(layout.world_size):
        mine = rows if rank == 0 else []
        (folder / "outputs" / f"shard_{rank}.jsonl").write_text(
            "".join(json.dumps(one) + "\n" for one in mine)
        )
        (folder / "metrics" / f"metrics_rank_{rank}.json").write_text(
            json.dumps(metrics(layout, rank, mine, 1.0))
        )


class Killed(BaseException):
    """Stands for kill -9: nothing of ours catches it."""


def pipeline(
    study: Study,
    instance: Instance,
    tell: Callable[[RunManifest], None] = lambda _: None,
) -> Any:
    client = Client(
        Address("http://127.0.0.1:1", "secret"), transport=httpx.MockTransport(instance)
    )
    return DistributedExperimentPipeline(study, client, tell=tell)


def statuses(study: Study) -> dict[str, str]:
    manifest = pipeline(study, Instance()).newest()
    return {entry.strategy_id: entry.status for entry in manifest.entries}


def test_a_study_killed_at_any_change_of_its_manifest_goes_on(tmp_path: Path) -> None:
    study = make_study(tmp_path, strategies=TWO)
    instance = Instance()
    left = [0]

    def tell(_: RunManifest) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    manifest = pipeline(study, instance).begin()
    kills = 0
    while True:
        left[0] = kills % 2
        try:
            working = pipeline(study, instance, tell)
            working.reopen(manifest := working.newest())
            well = working.run(manifest)
            break
        except Killed:
            kills += 1
    assert well and kills >= 3
    assert [entry.status for entry in manifest.entries] == ["COMPLETED"] * 2
    assert len(instance.jobs) == 2
    parts = {job["labels"]["study-part"] for job in instance.jobs.values()}
    assert parts == {"strategy"}, "by this the page finds them"
    (table,) = study.results.glob("run_*.parquet")
    assert pq.read_table(table).group_by("strategy_id", use_threads=False).aggregate(
        [([], "count_all")]
    ).to_pylist() == [
        {"strategy_id": entry.strategy_id, "count_all": 40}
        for entry in manifest.entries
    ]


def test_a_job_is_not_over_before_its_results_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study(tmp_path, strategies=ONE)
    instance = Instance()
    working = pipeline(study, instance)
    manifest = working.begin()
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(working, "collect", lambda *_: (_ for _ in ()).throw(Killed()))
        working.run(manifest)
    assert list(statuses(study).values()) == ["SUBMITTED"]
    again = pipeline(study, instance)
    again.reopen(manifest := again.newest())
    assert again.run(manifest)
    assert list(statuses(study).values()) == ["COMPLETED"]
    assert len(list(study.results.glob("run_*.parquet"))) == len(instance.jobs) == 1


def test_a_job_that_says_completed_and_left_nothing_has_failed(tmp_path: Path) -> None:
    study = make_study(tmp_path, strategies=ONE)
    instance = Instance()
    instance.silent = True
    working = pipeline(study, instance)
    assert not working.run(manifest := working.begin())
    assert manifest.entries[0].status == "FAILED"
    assert "says COMPLETED, but there is no output" in (
        manifest.entries[0].reason or ""
    )


def test_a_job_that_is_refused_stops_no_other(tmp_path: Path) -> None:
    study = make_study(tmp_path, strategies=TWO)
    instance = Instance()
    instance.refuse = {"tiny8b_pp1_tp1": "slurm/gpu has no such GPUs"}
    working = pipeline(study, instance)
    assert not working.run(manifest := working.begin())
    assert [entry.status for entry in manifest.entries] == ["FAILED", "COMPLETED"]
    assert "it was refused: slurm/gpu has no such GPUs" in (
        manifest.entries[0].reason or ""
    )
    instance.refuse = {}
    again = pipeline(study, instance)
    again.reopen(manifest := again.newest())
    assert again.run(manifest)


@pytest.mark.parametrize("silent", [True, False])
def test_results_that_are_read_again_say_the_same(tmp_path: Path, silent: bool) -> None:
    """Why a job failed is not lost with a second look, and not told twice, whether it
    left something or not.
    """
    study = make_study(tmp_path, strategies=TWO)
    instance = Instance()
    instance.silent = silent
    instance.end = {"state": "failed", "reason": "node_failed"}
    working = pipeline(study, instance)
    working.run(manifest := working.begin())
    before = [(entry.status, entry.reason) for entry in manifest.entries]
    assert [status for status, _ in before] == ["FAILED" if silent else "PARTIAL"] * 2
    assert all((reason or "").count("node_failed") == 1 for _, reason in before)
    for _ in range(2):
        collect_results(study, again := working.newest())
        assert [(entry.status, entry.reason) for entry in again.entries] == before


def test_while_one_works_on_a_study_nobody_else_touches_it(tmp_path: Path) -> None:
    study = make_study(tmp_path, strategies=ONE)
    instance = Instance()
    working = pipeline(study, instance)
    other = pipeline(study, instance)
    manifest = working.begin()

    def look() -> None:
        assert is_running(study)
        before = manifest.path.read_bytes()
        for attempt in (
            other.begin,
            lambda: other.reopen(other.newest()),
            lambda: other.run(other.newest()),
        ):
            with pytest.raises(
                InvalidInputError, match="is running in another process"
            ):
                attempt()
        assert manifest.path.read_bytes() == before
        assert len(list(study.runs.iterdir())) == 1

    instance.before_looking = look
    assert working.run(manifest)
    assert not is_running(study)


def test_a_run_remembers_what_its_jobs_are_asked_for(tmp_path: Path) -> None:
    asked = "[generation]\nmax_new_tokens = 7\n[load]\nrates = [1, 2]\nseed = 3\n"
    working = pipeline(make_study(tmp_path, asked, ONE), Instance())
    working.begin()
    asked_of_each = working.newest().asked
    assert asked_of_each["max_new_tokens"] == 7
    load = asked_of_each["load"]
    assert (load["rates"], load["requests"], load["seed"]) == ([1, 2], 100, 3)


def test_a_run_remembers_its_provider(tmp_path: Path) -> None:
    study = make_study(tmp_path, strategies=ONE)
    working = DistributedExperimentPipeline(
        study, pipeline(study, Instance()).client, provider="local"
    )
    assert working.begin().provider == "local"
    manifest = working.newest()
    assert manifest.provider == "local"
    document = json.loads(manifest.path.read_text())
    del document["provider"]
    manifest.path.write_text(json.dumps(document))
    assert working.newest().provider == "slurm", "as before there were others"


def test_a_run_does_not_go_on_with_another_model(tmp_path: Path) -> None:
    study = make_study(tmp_path, strategies=ONE)
    working = pipeline(study, Instance())
    manifest = working.begin()
    assert working.run(manifest)
    working.reopen(manifest)
    (study.model.path / "generation_config.json").write_text('{"eos_token_id": 7}')
    with pytest.raises(InvalidInputError, match="has other files than when run_"):
        working.reopen(manifest)


def test_a_report_before_any_job_is_over(tmp_path: Path) -> None:
    study = make_study(tmp_path, strategies=ONE)
    manifest = pipeline(study, Instance()).begin()
    _, markdown, page = write_report(study, manifest, load_summary(study, manifest))
    assert "No strategy can be ranked." in markdown.read_text()
    assert "0 strategies" in page.read_text()


def test_a_report_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path / "home"))
    study = make_study(tmp_path, strategies=ONE)
    working = pipeline(study, Instance())
    assert working.run(working.begin())
    done = CliRunner().invoke(app, ["study", "report", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "warning  the server does not have the results: No gpuyard server" in (
        done.output
    )


@pytest.mark.parametrize("most", [1, 2, 3])
def test_as_many_jobs_as_wanted_are_under_way_at_once(
    tmp_path: Path, most: int
) -> None:
    swept = '[[strategies]]\nkind = "custom"\nbatch_size = [1, 2, 4]\n'
    slurm = f"[slurm]\nmax_parallel = {most}\n"
    study = make_study(tmp_path, slurm, TWO.replace(ONE, swept))
    instance = Instance()
    seen: list[int] = []

    def look() -> None:
        over = {
            entry.gpuyard_job
            for entry in working.newest().entries
            if entry.status == "COMPLETED"
        }
        seen.append(len(instance.jobs) - len(over))

    instance.before_looking = look
    working = pipeline(study, instance)
    manifest = working.begin()
    assert working.run(manifest)
    assert max(seen) == most
    assert [entry.status for entry in manifest.entries] == ["COMPLETED"] * 4
    assert len(instance.jobs) == 4


def test_a_job_that_fails_says_why_everywhere(tmp_path: Path) -> None:
    """In the manifest, `status`, `show` and the report."""
    study = make_study(tmp_path, strategies=ONE)
    instance = Instance()
    instance.silent = True
    instance.end = {"state": "failed", "reason": "exit_code", "exit_code": 1}
    working = pipeline(study, instance)
    manifest = working.begin()

    def print_into_the_log() -> None:
        log = manifest.path.parent / "tiny8b_pp1_tp1" / "logs" / "slurm-1.out"
        log.write_text(
            "0: ModuleNotFoundError: No module named 'torch'\n"
            "srun: error: node4: task 0: Exited with exit code 1\n"
        )

    instance.before_looking = print_into_the_log
    assert not working.run(manifest)
    log = manifest.entries[0].slurm_out
    said = [
        path.read_text()
        for path in write_report(study, manifest, load_summary(study, manifest))[1:]
    ]
    for words in (["status"], ["show", "tiny8b_pp1_tp1"]):
        done = CliRunner().invoke(app, ["study", *words, str(tmp_path)])
        assert done.exit_code == 0, done.output
        said.append(done.output)
    for text in said:
        assert "rank 0 on node4" in text
        assert html.unescape(text).count("No module named 'torch'") == 1
        assert str(log) in text
        assert "install it for the interpreter slurm.python" in text
    unknown = CliRunner().invoke(app, ["study", "show", "none", str(tmp_path)])
    assert "has no strategy 'none'" in str(unknown.exception)
