"""A study on a real Slurm of four nodes: from prompts to tables, the same tokens
however the model is split, however often the command is killed, and after a strategy
has failed.

`GPUYARD_STUDY_KILLS` says how often a study is killed: 3 times in `make test`, 10 in
`make soak`.
"""

import csv
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.acceptance.test_slurm import settings
from tests.support.browser import browser
from tests.support.huggingface import fast_trainer_python
from tests.support.instance import TestInstance, make_instance
from tests.support.model_server import served
from tests.support.programs import run_program
from tests.support.slurm import SlurmCluster
from tests.support.wait import wait_until
from tests.support.web import http

__all__ = ["browser", "fast_trainer_python"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
KILLS = int(os.environ.get("GPUYARD_STUDY_KILLS", "3"))
# A study of four strategies changes its manifest at least so often: made, submitted,
# running, over, judged.
CHANGES = 16
NEW = 5
PROMPTS = 10
FEW = 4
# What Slurm and shells would each read in their own way.
_ODD = 'a "user\'s" study #1, 50%j; $(touch hacked)'
_MODEL = Path(__file__).parents[1] / "support" / "tiny_llama.py"
STRATEGIES = {
    "tiny_pp1_tp4_n4": 'kind = "tensor_across_nodes"\nnodes = 4',
    "tiny_pp4_tp1": 'kind = "pipeline_across_nodes"\nnodes = 4',
    "tiny_pp1_tp2": 'kind = "tensor_single_node"\ngpus_per_node = 2',
    "tiny_pp2_tp2": 'kind = "hybrid"\nnodes = 2\ngpus_per_node = 2',
}
# The one that fails, and one that it must not stop.
_HELD = "tiny_pp4_tp1"
_OTHER = "tiny_pp1_tp2"
_STUDY = """
[model]
name = "tiny/Llama"
path = "{model}"
short_name = "tiny"
[prompts]
count = {count}
budgets = {{ "2k" = 60, "4k" = 120 }}
[generation]
max_new_tokens = {new}
batch_size = 8
precision = "fp32"
device = "cpu"
{baseline}
[slurm]
time_limit = "00:03:00"
python = "{python}"
environment = {{ OMP_NUM_THREADS = "1" }}
"""
_BASELINE = """
[baseline]
base_url = "{url}"
model = "{model}"
answers_as = "tiny/Llama"
api_key_env = ""
max_tokens = {new}
"""


@contextmanager
def instance_on(slurm: SlurmCluster) -> Iterator[TestInstance]:
    """An instance in front of the cluster, which is left empty."""
    with make_instance() as made:
        made.home.create()
        made.home.settings.write_text(settings(slurm))
        made.ok("up")
        yield made
        slurm.call("scancel", "--me", check=False)


@pytest.fixture
def instance(slurm: SlurmCluster) -> Iterator[TestInstance]:
    with instance_on(slurm) as made:
        yield made


def texts(count: int) -> dict[str, list[str]]:
    """The prompts of each variant."""
    return {
        variant: [
            f"{number}: {'once more and again ' * 9}"[:length]
            for number in range(1, count + 1)
        ]
        for variant, length in (("2k", 60), ("4k", 120))
    }


@dataclass(frozen=True)
class Model:
    """A model, and what transformers answers with it to each prompt."""

    folder: Path
    answers: dict[str, list[int]]

    def expected(self, count: int) -> dict[str, list[int]]:
        """The answers to the first `count` prompts of each variant."""
        return {
            prompt: answer
            for prompt, answer in self.answers.items()
            if int(prompt[1:3]) <= count
        }


@pytest.fixture(scope="module")
def model(fast_trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    work = tmp_path_factory.mktemp("model")
    asked = {
        f"p{number:02}/{variant}": text.strip()
        for variant, prompts in texts(PROMPTS).items()
        for number, text in enumerate(prompts, 1)
    }
    (work / "texts.json").write_text(json.dumps(asked))
    folder = work / "tiny"
    run_program(
        [fast_trainer_python, _MODEL, folder, work / "texts.json", str(NEW)],
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return Model(folder, json.loads((folder / "expected.json").read_text()))


def make_study(instance: TestInstance, count: int, name: str = "study") -> Path:
    """The folder of a study over twice so many prompts, without its settings."""
    folder = instance.work / name
    instance.ok("study", "init", str(folder))
    for variant, prompts in texts(count).items():
        (folder / "data" / f"prompts_{variant}.txt").write_text(
            "\n---\n".join(prompts) + "\n"
        )
    return folder


def write_settings(
    folder: Path,
    model: Model,
    python: Path,
    count: int,
    strategies: Sequence[str] = tuple(STRATEGIES),
    baseline: str = "",
) -> None:
    """study.toml."""
    study = _STUDY.format(
        model=model.folder, count=count, new=NEW, python=python, baseline=baseline
    )
    parts = [f"[[strategies]]\n{STRATEGIES[name]}\n" for name in strategies]
    (folder / "study.toml").write_text("".join([study, *parts]))


def hold(folder: Path, python: Path, strategy: str) -> tuple[Path, Path]:
    """A python in which one strategy's processes wait until a file is there; both."""
    go = folder / "go"
    held = folder / "held-python"
    held.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{strategy}*) until [ -e "{go}" ]; do sleep 0.1; done ;; esac\n'
        f'exec "{python}" "$@"\n'
    )
    held.chmod(0o755)
    return held, go


def tables(folder: Path) -> dict[str, dict[str, list[int]]]:
    """The token ids of each prompt, by strategy, as the results' table has them."""
    import pyarrow.parquet as pq

    (path,) = folder.glob("results/run_*.parquet")
    found: dict[str, dict[str, list[int]]] = {}
    for row in pq.read_table(path).to_pylist():
        found.setdefault(row["strategy_id"], {})[
            f"{row['prompt_id']}/{row['variant']}"
        ] = row["token_ids"]
    return found


def entries(instance: TestInstance, folder: Path) -> list[dict[str, Any]]:
    return instance.json("study", "status", str(folder))["items"]


class Changes:
    """How often a study's manifest has changed, as far as somebody who looks again and
    again can see.
    """

    def __init__(self, study: Path) -> None:
        self._study = study
        self._last = 0
        self._count = 0

    def count(self) -> int:
        newest = max(
            (
                path.stat().st_mtime_ns
                for path in self._study.glob("runs/run_*/manifest.json")
            ),
            default=0,
        )
        self._count += newest != self._last
        self._last = newest
        return self._count


def run_and_kill(
    instance: TestInstance, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run the study, kill the command again and again, and let it go on to its end."""
    dice = random.Random(5)
    changes = Changes(folder)
    for moment in sorted(dice.sample(range(CHANGES), KILLS)):
        study = instance.popen(
            "study", "resume" if changes.count() else "run", str(folder)
        )
        wait_until(
            lambda at=moment, run=study: (
                changes.count() >= at or run.poll() is not None
            ),
            120,
            "a moment",
        )
        with suppress(subprocess.TimeoutExpired):
            # Somewhere between this change and the next ones.
            study.wait(dice.uniform(0, 0.3))
        assert study.returncode is None, study.communicate()
        study.kill()
        study.communicate()
    word = "resume" if changes.count() else "run"
    return instance.run("study", word, str(folder), timeout=300)


@dataclass(frozen=True)
class Done:
    """A study that went on to its end each time that its command was killed, while its
    baseline's server was up.
    """

    instance: TestInstance
    folder: Path
    entries: list[dict[str, Any]]
    url: str

    @property
    def page(self) -> Path:
        (page,) = self.folder.glob("results/summary_run_*.html")
        return page


@pytest.fixture(scope="module")
def done(
    slurm: SlurmCluster, fast_trainer_python: Path, model: Model
) -> Iterator[Done]:
    with instance_on(slurm) as instance:
        folder = make_study(instance, PROMPTS, _ODD)
        with served(fast_trainer_python, model.folder, instance.work / "hub") as url:
            baseline = _BASELINE.format(url=url, model=model.folder, new=NEW)
            write_settings(
                folder, model, fast_trainer_python, PROMPTS, baseline=baseline
            )
            ended = run_and_kill(instance, folder)
        nodes = slurm.call("sinfo", "-N", "-l")
        assert ended.returncode == 0, ended.stdout + ended.stderr + nodes
        yield Done(instance, folder, entries(instance, folder), url)


def test_four_strategies_answer_as_one_process_does(done: Done, model: Model) -> None:
    assert len(model.answers) == 2 * PROMPTS
    assert tables(done.folder) == dict.fromkeys(STRATEGIES, model.answers)
    assert [(entry["status"], entry["attempt"]) for entry in done.entries] == [
        ("COMPLETED", 1)
    ] * 4
    assert done.page.with_suffix(".csv").exists()
    assert done.page.with_suffix(".md").exists()
    for entry in done.entries:
        assert Path(entry["slurm_out"]).exists()
        assert entry["elapsed_s"] > 0
    with http(done.instance) as client:  # where the page finds it
        (left,) = client.get("/api/v1/studies").json()["items"]
    assert {one["strategy_id"] for one in left["strategies"]} == set(STRATEGIES)
    assert left["best"] in STRATEGIES


def test_a_study_that_is_killed_goes_on_and_submits_nothing_twice(
    done: Done, slurm: SlurmCluster
) -> None:
    jobs = [entry["job_id"] for entry in done.entries]
    assert len(jobs) == len(set(jobs)) == 4
    attempts = [job["attempts"] for job in done.instance.json("jobs")["items"]]
    assert [len(each) for each in attempts] == [1] * 4
    shown = slurm.call("scontrol", "-o", "show", "jobs")
    assert shown.count(f"WorkDir={done.folder}/") == 4


def test_strategies_are_compared_with_a_real_servers_answers(done: Done) -> None:
    import pyarrow.parquet as pq

    asked = pq.read_table(
        done.folder / "results" / "baseline_prompts.parquet"
    ).to_pylist()
    assert [row["status"] for row in asked] == ["ok"] * 2 * PROMPTS
    assert {row["source"] for row in asked} == {done.url.split("/")[2]}
    assert all(row["local_latency_ms"] > 0 for row in asked)
    with done.page.with_suffix(".csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["variant"] == "all"]
    # The server has the same weights and chooses greedily, too.
    assert [
        (row["strategy_id"], float(row["exact_match"]), int(row["prompts"]))
        for row in rows
    ] == [(strategy, 1, 2 * PROMPTS) for strategy in STRATEGIES]
    said = done.page.with_suffix(".md").read_text()
    assert "compare models" not in said and "neither truth nor baseline" not in said


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(
    done: Done, browser: Browser, width: int, tmp_path: Path
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(done.page.as_uri())
    assert (said, asked) == ([], [done.page.as_uri()])
    for table in page.locator("table").all():
        text = table.text_content() or ""
        assert all(strategy in text for strategy in STRATEGIES)
    plots = page.locator("figure svg").all()
    assert len(plots) == 8
    for plot in plots:
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert (
            plot.is_visible()
            and box
            and box["width"] > 0.7 * min(width, 500)
            and box["height"] > 150
        ), box
    check_script(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, (
        "nothing sticks out"
    )
    page.screenshot(path=tmp_path / f"page-{width}.png", full_page=True)
    page.close()
    assert said == []


def check_script(page: Page) -> None:
    """The page's own script hides the rows of single variants until they are asked for,
    and sorts by a column.
    """
    table = page.locator("table.summary")
    shown = table.locator("tbody tr:visible")
    assert shown.count() == 4
    page.get_by_label("show each variant").check()
    assert shown.count() == 12
    page.get_by_label("show each variant").uncheck()
    table.get_by_role("button", name="strategy", exact=True).click()
    assert [row.split("\t")[0].strip() for row in shown.all_inner_texts()] == sorted(
        STRATEGIES
    )


def newest(folder: Path, strategy: str) -> dict[str, Any]:
    """A strategy's newest entry in the manifest; empty where there is none."""
    found = {
        entry["strategy_id"]: entry
        for path in folder.glob("runs/run_*/manifest.json")
        for entry in json.loads(path.read_text())["entries"]
    }
    return found.get(strategy, {})


def check_one_at_a_time(instance: TestInstance, folder: Path) -> int:
    """While the study runs no other command does it; Ctrl-C ends the command and leaves
    its job to Slurm: the job's id there.
    """
    study = instance.popen("study", "run", str(folder))
    wait_until(
        lambda: newest(folder, _HELD).get("status") == "SUBMITTED", what="the run"
    )
    for word in ("run", "resume"):
        second = instance.run("study", word, str(folder))
        assert second.returncode == 2
        assert "study: is running in another process" in second.stderr
    assert len(list(folder.glob("runs/*"))) == 1
    study.send_signal(signal.SIGINT)
    said, _ = study.communicate(timeout=60)
    assert (study.returncode, "`gpuyard study resume` goes on" in said) == (130, True)
    (job,) = instance.json("jobs")["items"]
    assert job["state"] in ("assigned", "running")
    return newest(folder, _HELD)["job_id"]


def test_one_run_at_a_time_and_a_strategy_that_fails_stops_no_other(
    instance: TestInstance,
    slurm: SlurmCluster,
    fast_trainer_python: Path,
    model: Model,
) -> None:
    folder = make_study(instance, FEW)
    held, go = hold(folder, fast_trainer_python, _HELD)
    write_settings(folder, model, held, FEW, (_HELD, _OTHER))
    job = check_one_at_a_time(instance, folder)
    study = instance.popen("study", "resume", str(folder))
    wait_until(
        lambda: newest(folder, _HELD).get("state") == "running", 120, "the strategy"
    )
    slurm.kill_with_all("node3")
    try:
        # Slurm itself would wait a quarter of a minute for the node.
        slurm.call("scontrol", "update", "NodeName=node3", "State=DOWN", "Reason=test")
        assert study.wait(280) == 1
        failed, other = entries(instance, folder)
        assert failed["status"] in ("FAILED", "PARTIAL")
        assert failed["reason"]
        assert (failed["job_id"], failed["attempt"]) == (job, 1), "it went on with it"
        assert other["status"] == "COMPLETED"
    finally:
        slurm.start_node("node3")
        go.touch()
    ended = instance.run("study", "resume", str(folder), timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    expected = model.expected(FEW)
    assert tables(folder) == dict.fromkeys((_HELD, _OTHER), expected)


def test_a_study_on_nodes_of_ones_own(fast_trainer_python: Path, model: Model) -> None:
    with make_instance() as instance:
        folder = make_study(instance, FEW)
        write_settings(folder, model, fast_trainer_python, FEW, (_OTHER,))
        settings_file = folder / "study.toml"
        on_cpus = settings_file.read_text().replace("[slurm]", '[slurm]\ngres = ""')
        settings_file.write_text(on_cpus)
        words = [str(folder), "--provider", "local"]
        tried = instance.run("study", "validate", "--probe", *words, timeout=280)
        assert tried.returncode == 0, tried.stdout + tried.stderr
        ended = instance.run("study", "run", *words, timeout=280)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert tables(folder) == {_OTHER: model.expected(FEW)}
        (entry,) = entries(instance, folder)
        assert entry["elapsed_s"] > 0
        assert Path(entry["slurm_out"]).exists()
        jobs = {job["id"]: job["state"] for job in instance.json("jobs")["items"]}
        assert len(jobs) == 2, "one looked at the node"
        assert jobs[entry["gpuyard_job"]] == "completed"
        settings_file.write_text(on_cpus.replace('gres = ""', 'gres = "gpu"'))
        refused = instance.run("study", "validate", *words)
        assert refused.returncode == 2, refused.stdout + refused.stderr
        assert "the GPUs of the cluster are called nothing" in refused.stdout


def test_what_the_cluster_has_not_and_why_a_rank_failed(
    instance: TestInstance, model: Model
) -> None:
    folder = make_study(instance, FEW)
    broken = folder / "broken-python"
    broken.write_text("#!/bin/sh\necho \"No module named 'torch'\" >&2\nexit 3\n")
    broken.chmod(0o755)
    write_settings(folder, model, broken, FEW, (_OTHER,))
    settings_file = folder / "study.toml"
    sound = settings_file.read_text()
    settings_file.write_text(sound.replace("[slurm]", '[slurm]\ngres = "gpu:h100"'))
    refused = instance.run("study", "validate", str(folder))
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "which are not there (choose of: gpu, gpu:a100)" in refused.stdout
    settings_file.write_text(sound)
    ended = instance.run("study", "run", str(folder), timeout=280)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    (failed,) = entries(instance, folder)
    failure = failed["failure"]
    said = json.dumps(failed, indent=1)
    assert failed["status"] == "FAILED", said
    assert failure["rank"] in (0, 1) and failure["node"].startswith("node"), said
    assert failure["lines"][0] == "No module named 'torch'", said
    assert failure["log"] == failed["slurm_out"], said
    assert failure["advice"].startswith("install it"), said
    shown = instance.ok("study", "show", _OTHER, str(folder))
    assert "No module named 'torch'" in shown and failure["log"] in shown
