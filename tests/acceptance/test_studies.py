"""A study on a real Slurm of four nodes: from prompts to tables, the same tokens
however the model is split.

`GPUYARD_STUDY_KILLS` says how often a study is killed: 3 times in `make test`, 10 in
`make soak`.
"""

import csv
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
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
from tests.support.slurm import SlurmCluster
from tests.support.wait import wait_until

__all__ = ["browser", "fast_trainer_python"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
KILLS = int(os.environ.get("GPUYARD_STUDY_KILLS", "3"))
# A study of four strategies changes its manifest at least so often: made, submitted,
# running, over, judged.
CHANGES = 16
NEW = 5
PROMPTS = 10
# What Slurm and shells would each read in their own way.
_ODD = 'a "user\'s" study #1, 50%j; $(touch hacked)'
_MODEL = Path(__file__).parents[1] / "support" / "tiny_llama.py"
STRATEGIES = ("tiny_pp1_tp4_n4", "tiny_pp4_tp1", "tiny_pp1_tp2", "tiny_pp2_tp2")
_STUDY = """
[model]
name = "tiny/Llama"
path = "model"
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
[[strategies]]
kind = "tensor_across_nodes"
nodes = 4
[[strategies]]
kind = "pipeline_across_nodes"
nodes = 4
[[strategies]]
kind = "tensor_single_node"
gpus_per_node = 2
[[strategies]]
kind = "hybrid"
nodes = 2
gpus_per_node = 2
"""


_BASELINE = """
[baseline]
base_url = "{url}"
model = "{folder}/model"
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


def make_study(
    instance: TestInstance, python: Path, count: int = PROMPTS, name: str = "study"
) -> Path:
    """A study of four strategies over twice so many prompts, with what transformers
    answers to each.
    """
    folder = instance.work / name
    instance.ok("study", "init", str(folder))
    texts: dict[str, str] = {}
    for variant, length in (("2k", 60), ("4k", 120)):
        prompts = [
            f"{number}: {'once more and again ' * 9}"[:length]
            for number in range(1, count + 1)
        ]
        (folder / "data" / f"prompts_{variant}.txt").write_text(
            "\n---\n".join(prompts) + "\n"
        )
        texts |= {
            f"p{number:02}/{variant}": text.strip()
            for number, text in enumerate(prompts, 1)
        }
    write_settings(folder, python, count)
    (folder / "texts.json").write_text(json.dumps(texts))
    subprocess.run(
        [python, _MODEL, folder / "model", folder / "texts.json", str(NEW)],
        check=True,
        timeout=120,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return folder


def write_settings(folder: Path, python: Path, count: int, baseline: str = "") -> None:
    """study.toml."""
    (folder / "study.toml").write_text(
        _STUDY.format(count=count, new=NEW, python=python, baseline=baseline)
    )


def hold(folder: Path, python: Path, strategy: str) -> Path:
    """Let one strategy's processes wait until the returned file is there."""
    go = folder / "go"
    held = folder / "held-python"
    held.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{strategy}*) until [ -e "{go}" ]; do sleep 0.1; done ;; esac\n'
        f'exec "{python}" "$@"\n'
    )
    held.chmod(0o755)
    write_settings(folder, held, 4)
    return go


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


@dataclass(frozen=True)
class Done:
    """A study that was run with one command while its baseline's server was up."""

    folder: Path
    expected: dict[str, list[int]]
    entries: list[dict[str, Any]]
    url: str

    @property
    def page(self) -> Path:
        (page,) = self.folder.glob("results/summary_run_*.html")
        return page


@pytest.fixture(scope="module")
def done(slurm: SlurmCluster, fast_trainer_python: Path) -> Iterator[Done]:
    with instance_on(slurm) as instance:
        folder = make_study(instance, fast_trainer_python)
        with served(
            fast_trainer_python, folder / "model", instance.work / "hub"
        ) as url:
            write_settings(
                folder,
                fast_trainer_python,
                PROMPTS,
                _BASELINE.format(url=url, folder=folder, new=NEW),
            )
            ended = instance.run("study", "run", str(folder), timeout=300)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        expected = json.loads((folder / "model" / "expected.json").read_text())
        yield Done(folder, expected, entries(instance, folder), url)


def test_four_strategies_answer_as_one_process_does(done: Done) -> None:
    assert len(done.expected) == 2 * PROMPTS
    assert tables(done.folder) == dict.fromkeys(STRATEGIES, done.expected)
    assert [(entry["status"], entry["attempt"]) for entry in done.entries] == [
        ("COMPLETED", 1)
    ] * 4
    assert done.page.with_suffix(".csv").exists()
    assert done.page.with_suffix(".md").exists()
    for entry in done.entries:
        assert Path(entry["slurm_out"]).exists()
        assert entry["elapsed_s"] > 0


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
    assert len(plots) == 6
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


def test_a_study_that_is_killed_goes_on_and_submits_nothing_twice(
    instance: TestInstance, slurm: SlurmCluster, fast_trainer_python: Path
) -> None:
    folder = make_study(instance, fast_trainer_python, count=4, name=_ODD)
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
    done = instance.run(
        "study", "resume" if changes.count() else "run", str(folder), timeout=300
    )
    nodes = slurm.call("sinfo", "-N", "-l")
    assert done.returncode == 0, done.stdout + done.stderr + nodes
    expected = json.loads((folder / "model" / "expected.json").read_text())
    assert tables(folder) == dict.fromkeys(STRATEGIES, expected)
    jobs = [entry["job_id"] for entry in entries(instance, folder)]
    assert len(jobs) == len(set(jobs)) == 4
    assert [len(job["attempts"]) for job in instance.json("jobs")["items"]] == [1] * 4
    assert slurm.call("scontrol", "-o", "show", "jobs").count(f"WorkDir={folder}/") == 4


def newest(folder: Path, strategy: str) -> dict[str, Any]:
    """A strategy's newest entry in the manifest; empty where there is none."""
    found = {
        entry["strategy_id"]: entry
        for path in folder.glob("runs/run_*/manifest.json")
        for entry in json.loads(path.read_text())["entries"]
    }
    return found.get(strategy, {})


def test_a_strategy_that_fails_stops_no_other_and_resume_completes_it(
    instance: TestInstance, slurm: SlurmCluster, fast_trainer_python: Path
) -> None:
    folder = make_study(instance, fast_trainer_python, count=4)
    go = hold(folder, fast_trainer_python, "tiny_pp4_tp1")
    study = instance.popen("study", "run", str(folder))
    wait_until(
        lambda: newest(folder, "tiny_pp4_tp1").get("state") == "running",
        120,
        "the second strategy",
    )
    slurm.kill_with_all("node3")
    try:
        assert study.wait(280) == 1
        second = [
            entry
            for entry in entries(instance, folder)
            if entry["strategy_id"] == "tiny_pp4_tp1"
        ]
        assert second[-1]["status"] in ("FAILED", "PARTIAL")
        assert second[-1]["reason"]
    finally:
        slurm.start_node("node3")
        go.touch()
    others = {
        entry["strategy_id"]: entry["status"] for entry in entries(instance, folder)
    }
    assert {others["tiny_pp1_tp2"], others["tiny_pp2_tp2"]} == {"COMPLETED"}
    done = instance.run("study", "resume", str(folder), timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = json.loads((folder / "model" / "expected.json").read_text())
    assert tables(folder) == dict.fromkeys(STRATEGIES, expected)


def test_one_run_at_a_time_and_ctrl_c_leaves_its_job_to_slurm(
    instance: TestInstance, fast_trainer_python: Path
) -> None:
    folder = make_study(instance, fast_trainer_python, count=4)
    go = hold(folder, fast_trainer_python, STRATEGIES[0])
    study = instance.popen("study", "run", str(folder))
    wait_until(
        lambda: newest(folder, STRATEGIES[0]).get("status") == "SUBMITTED",
        60,
        "the run",
    )
    for word in ("run", "resume"):
        second = instance.run("study", word, str(folder))
        assert second.returncode == 2
        assert "study: is running in another process" in second.stderr
    assert len(list(folder.glob("runs/*"))) == 1
    study.send_signal(signal.SIGINT)
    said, _ = study.communicate(timeout=60)
    assert (study.returncode, "`gpuyard study resume` goes on" in said) == (130, True)
    go.touch()
    (job,) = instance.json("jobs")["items"]
    assert instance.wait(job["id"]).state == "completed"
