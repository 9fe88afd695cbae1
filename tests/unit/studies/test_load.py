"""Requests that come at a rate, and what is said of the answers."""

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.load_figures import (
    LoadFindings,
    LoadRow,
    figures_of,
    read_load,
)
from gpuyard.studies.report import StudyReport
from gpuyard.studies.runtime.generated_answer import GeneratedAnswer
from gpuyard.studies.runtime.load_generator import (
    TimedRequest,
    ask_concurrently,
    ask_in_batches,
    poisson_arrivals,
    row_of_request,
)
from gpuyard.studies.runtime.prompts import Prompt
from gpuyard.studies.strategy_checks import study_faults
from gpuyard.studies.summary import RunSummary
from tests.support.study_run import (
    ALONE,
    RUN,
    entry,
    prompts,
    write_manifest,
    write_prompts,
    write_strategy,
)
from tests.unit.studies.folders import make_study

PROMPTS = [Prompt(f"p{number}", "2k", (number,)) for number in range(3)]


def answer(prompt: Prompt) -> GeneratedAnswer:
    return GeneratedAnswer(prompt, [1, 2, 3], [0.1, 0.2, 0.4], 0.4)


def test_arrivals_are_random_and_the_same_each_time() -> None:
    requests = poisson_arrivals(PROMPTS, 4.0, 4000, seed=1)
    assert requests == poisson_arrivals(PROMPTS, 4.0, 4000, seed=1)
    assert requests != poisson_arrivals(PROMPTS, 4.0, 4000, seed=2)
    assert requests[-1].at_s == pytest.approx(1000, rel=0.05)
    gaps = [after.at_s - before.at_s for before, after in pairwise(requests)]
    # Of an exponential distribution, the mean is the standard deviation.
    assert sum(gap**2 for gap in gaps) / len(gaps) == pytest.approx(2 / 16, rel=0.1)
    assert [one.prompt.prompt_id for one in requests[:4]] == ["p0", "p1", "p2", "p0"]


def test_times_count_from_when_a_request_came() -> None:
    row = row_of_request(TimedRequest(2.0, PROMPTS[0]), 2.5, answer(PROMPTS[0]))
    assert row["ttft_ms"] == pytest.approx(600)
    assert row["tpot_ms"] == pytest.approx(150)
    assert row["latency_ms"] == pytest.approx(900)
    silent = GeneratedAnswer(PROMPTS[0], [1, 2], [], 0.4)
    row = row_of_request(TimedRequest(2.0, PROMPTS[0]), 2.0, silent)
    assert (row["ttft_ms"], row["tpot_ms"]) == (400, None)


class Engine:
    """Remembers its batches; a single answer waits until all have come."""

    def __init__(self, together: int = 1) -> None:
        self.batches: list[int] = []
        self._all = threading.Barrier(together)

    def generate(self, batch: Sequence[Prompt]) -> list[GeneratedAnswer]:
        self.batches.append(len(batch))
        return [answer(prompt) for prompt in batch]

    def answer(self, prompt: Prompt) -> GeneratedAnswer:
        self._all.wait(60)
        return answer(prompt)


def test_requests_do_not_wait_for_the_answers_of_others() -> None:
    requests = poisson_arrivals(PROMPTS, 1000.0, 8, seed=0)
    rows = ask_concurrently(Engine(together=8), requests)
    assert [row["prompt_id"] for row in rows] == [
        request.prompt.prompt_id for request in requests
    ]


def test_an_engine_of_batches_takes_what_has_come() -> None:
    engine = Engine()
    requests = [TimedRequest(0.0, PROMPTS[number % 3]) for number in range(7)]
    rows = ask_in_batches(engine, requests, 4, agree=lambda count: count)
    assert (engine.batches, len(rows)) == ([4, 3], 7)
    told = iter([1, 2, 4])
    engine = Engine()
    ask_in_batches(engine, requests, 4, agree=lambda _: next(told))
    assert engine.batches == [1, 2, 4], "as the leader says"


def test_goodput_counts_what_kept_the_limits() -> None:
    rows = [
        LoadRow(
            rate=1.0,
            arrived_s=1.0 + number,
            ttft_ms=100.0 * number,
            tpot_ms=None if number == 1 else 10.0 * number,
            latency_ms=500.0,
            tokens=4,
        )
        for number in (1, 2, 3, 4)
    ]
    found = figures_of(1.0, rows, {"ttft_limit_ms": 300.0, "tpot_limit_ms": 25.0})
    # From the first at 2 s to the last answer at 5.5 s; the third is too slow.
    assert found.goodput == pytest.approx(2 / 3.5)
    assert found.requests_per_s == pytest.approx(4 / 3.5)
    assert found.tokens_per_s == pytest.approx(16 / 3.5)
    assert (found.ttft_ms_p50, found.tpot_ms_p50) == (250, 30)
    assert figures_of(1.0, rows, {}).goodput == pytest.approx(4 / 3.5)


def test_a_load_that_cannot_be_is_told_and_does_not_count(tmp_path: Path) -> None:
    drawn = poisson_arrivals(PROMPTS, 8.0, 20, seed=3)
    sound = [
        {"rate": 8.0, **row_of_request(one, 0.0, answer(one.prompt))} for one in drawn
    ]
    asked = {"rates": [8.0], "requests": 20, "seed": 3}
    (tmp_path / "load").mkdir()
    path = tmp_path / "load" / "load_rank_0.jsonl"

    def faults_of(*rows: object) -> tuple[str, ...]:
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
        found = read_load(tmp_path, asked, most_tokens=3)
        assert sum(one.requests for one in found.figures) <= 20
        return found.faults

    assert faults_of(*sound) == ()
    at_once = [{**one, "arrived_s": 0.0} for one in sound]
    assert "came at other times than were drawn" in faults_of(*at_once)[0]
    assert faults_of(*sound[:7]) == ("at 8 requests/s there are 7 of 20 requests",)
    odd = (
        {"latency_ms": -1.0},
        {"ttft_ms": 9e9},
        {"tokens": 4},
        {"tokens": "many"},
        {"arrived_s": None},
        {"latency_ms": float("nan")},
        {"rate": 9.0},
    )
    for more in odd:
        (_, damaged) = faults_of({**sound[0], **more}, *sound[1:])
        assert damaged == "1 lines under load are no possible requests", more


def test_a_load_that_nobody_could_draw_is_not_drawn(tmp_path: Path) -> None:
    asked = {"rates": list(range(1, 12)), "requests": 1_000_000}
    assert read_load(tmp_path, asked) == LoadFindings()


def test_the_report_says_what_came_of_a_load(tmp_path: Path) -> None:
    run = tmp_path / "runs" / RUN
    asked = prompts(2)
    write_prompts(run, asked)
    write_strategy(run, ALONE, asked)
    folder = run / ALONE.strategy_id
    path = folder / "exp_config.json"
    config = json.loads(path.read_text()) | {"load": {"ttft_limit_ms": 700.0}}
    path.write_text(json.dumps(config))
    (folder / "load").mkdir()
    requests = poisson_arrivals(PROMPTS, 8.0, 20, seed=0)
    lines = [
        json.dumps(
            {
                "rate": 8.0,
                **row_of_request(one, one.at_s + 0.5 * late, answer(one.prompt)),
            }
        )
        for late, one in enumerate(requests[:2])
    ]
    (folder / "load" / "load_rank_0.jsonl").write_text(
        "\n".join([*lines, '{"rate": 8'])
    )
    write_manifest(run, [entry(ALONE)])
    collector = ResultCollector(run)
    (collected,) = collector.ingest_run()
    (figures,) = collected.load
    assert (figures,) == read_load(folder, config["load"]).figures
    assert collected.reasons == ("1 lines under load are no possible requests",)
    summary = RunSummary.load(collector.results, run.name)
    assert summary.loads == {ALONE.strategy_id: [asdict(figures)]}
    assert "## Under load" in summary.to_markdown()
    page = StudyReport(summary, run).html()
    assert "TPOT p99, ms" in page
    drawn = f"{ALONE.strategy_id}: at most {figures.goodput:.2f} requests/s"
    assert drawn in page


def test_the_class_of_vllm_is_not_put_under_load(tmp_path: Path) -> None:
    load = '[generation]\nengine = "vllm"\n[load]\nrates = [1, 2.5]\n'
    study = make_study(tmp_path, load, '[[strategies]]\nkind = "custom"\n')
    assert study.load is not None and study.load.rates == (1, 2.5)
    (fault,) = study_faults(study)
    assert (fault.field, fault.remedy) == (
        "strategies.0.engine",
        "choose vllm_server, or remove [load]",
    )
