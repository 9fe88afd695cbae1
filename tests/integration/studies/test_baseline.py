"""The baseline against an endpoint that does all that endpoints do: refuses, breaks,
lies, says nothing, is slow.
"""

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from gpuyard.studies.baseline import LocalInferenceRunner
from gpuyard.studies.completions import (
    Completion,
    NoCompletionError,
    OpenAICompletionClient,
)
from gpuyard.studies.prompts import (
    PromptDataFrameBuilder,
    PromptFileSet,
    PromptRepository,
)
from gpuyard.studies.rate_limiter import RequestClock
from gpuyard.studies.study import Study
from gpuyard.studies.tables import read_table, rows_of
from tests.integration.studies.endpoint import (
    CUT,
    KEY,
    MODEL,
    Endpoint,
    Reply,
    fails,
    says,
    serve,
)
from tests.support.instance import gpuyard
from tests.support.wait import wait_until
from tests.unit.studies.folders import NO_SERVER, make_study

ENVIRONMENT = {"OPENAI_API_KEY": KEY}


class StoryClock(RequestClock):
    """Pauses take no time and are remembered."""

    def __init__(self) -> None:
        self.at = 0.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.at += seconds
        await asyncio.sleep(0)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve() as made:
        yield made


@pytest.fixture
def clock() -> StoryClock:
    return StoryClock()


def study_at(endpoint: Endpoint, folder: Path, **more: Any) -> Study:
    settings = {
        "base_url": endpoint.url,
        "model": MODEL,
        "concurrency": 3,
        "retries": 3,
        **more,
    }
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    return make_study(folder, f"[baseline]\n{lines}", count=3)


def runner_of(study: Study, clock: RequestClock | None = None) -> LocalInferenceRunner:
    assert study.baseline
    return LocalInferenceRunner(
        study.baseline, study.results / "baseline.jsonl", ENVIRONMENT, clock
    )


def frame_of(study: Study) -> Any:
    return PromptDataFrameBuilder(PromptRepository(PromptFileSet.of(study))).build()


def ask(
    study: Study, clock: RequestClock, *prompts: str
) -> list[Completion | NoCompletionError]:
    assert study.baseline

    async def play() -> list[Completion | NoCompletionError]:
        client = OpenAICompletionClient(study.baseline, ENVIRONMENT, clock)  # pyright: ignore[reportArgumentType]
        try:
            return await client.complete_batch(prompts)
        finally:
            await client.close()

    return asyncio.run(play())


def test_each_prompt_is_asked_again_to_measure_noise(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    study = study_at(endpoint, tmp_path, repeats=3, concurrency=1)

    def answer(prompt: str, count: int) -> Reply:
        is_other = prompt.startswith("Question 1") and count == 2
        return says("Another." if is_other else f"Answer to {prompt[:20]}")

    endpoint.answer = answer
    rows = rows_of(runner_of(study).run(frame_of(study)))
    assert set(endpoint.asked.values()) == {3}
    same = {row["prompt_id"]: row["local_same"] for row in rows}
    assert same == {"p01": 0.5, "p02": 1.0, "p03": 1.0}
    again = rows_of(runner_of(study).run(frame_of(study)))
    assert (again, set(endpoint.asked.values())) == (rows, {3}), "it is not paid twice"
    once = rows_of(runner_of(study_at(endpoint, tmp_path)).run(frame_of(study)))
    assert [row["local_same"] for row in once] == [None] * 6
    assert set(endpoint.asked.values()) == {3}


def test_every_prompt_gets_its_answer(endpoint: Endpoint, tmp_path: Path) -> None:
    study = study_at(endpoint, tmp_path, max_tokens=5, temperature=0.5)
    runner = runner_of(study)
    found = runner.run(frame_of(study))
    runner.persist(found, study.baseline_table)
    rows = rows_of(read_table(study.baseline_table))
    assert [(row["prompt_id"], row["variant"]) for row in rows] == [
        (f"p0{place}", variant) for variant in ("2k", "4k") for place in (1, 2, 3)
    ]
    for row in rows:
        assert row["local_completion"] == f"Answer to {row['prompt'][:20]}"
        assert (row["status"], row["local_tokens"], row["local_model"]) == (
            "ok",
            3,
            MODEL,
        )
        assert row["local_latency_ms"] > 0
        assert row["source"] == endpoint.url.removeprefix("http://").removesuffix("/v1")
    assert {
        (sent["model"], sent["max_tokens"], sent["temperature"])
        for sent in endpoint.requests
    } == {(MODEL, 5, 0.5)}
    assert endpoint.most_at_once <= 3


def test_nothing_is_asked_twice_but_on_demand(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    study = study_at(endpoint, tmp_path)
    runner_of(study).run(frame_of(study))
    again = runner_of(study).run(frame_of(study))
    assert set(again["status"]) == {"ok"} and set(endpoint.asked.values()) == {1}
    endpoint.answer = lambda prompt, _: says("new")
    anew = runner_of(study).run(frame_of(study), override=True)
    assert set(anew["local_completion"]) == {"new"} and set(
        endpoint.asked.values()
    ) == {2}


def test_answers_to_other_questions_do_not_count(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    study = study_at(endpoint, tmp_path)
    runner_of(study).run(frame_of(study))
    other = study_at(endpoint, tmp_path, temperature=1.0)
    assert set(runner_of(other).attach_metrics(frame_of(other))["status"]) == {
        "pending"
    }
    path = study.prompts.folder / "prompts_2k.txt"
    path.write_text(path.read_text().replace("Question 2", "Riddle 2"))
    found = runner_of(study).attach_metrics(frame_of(study))
    assert list(found["status"]) == ["ok", "pending", "ok", "ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("fault", "pause"),
    [
        (fails(429, retry_after="17"), 17.0),
        (fails(429, retry_after_ms="1500"), 1.5),
        (fails(429), None),
        (fails(500), None),
        (fails(503, retry_after="3"), 3.0),
        (fails(408), None),
        (CUT, None),
        (says("", choices=[]), None),
        (Reply(200, b""), None),
        (Reply(200, b"<html>sorry</html>", {"Content-Type": "text/html"}), None),
    ],
    ids=[
        "429 in 17 s",
        "429 in 1.5 s",
        "429",
        "500",
        "503 in 3 s",
        "408",
        "cut",
        "no choices",
        "empty",
        "html",
    ],
)
def test_what_may_pass_is_tried_again(
    endpoint: Endpoint,
    tmp_path: Path,
    clock: StoryClock,
    fault: Reply,
    pause: float | None,
) -> None:
    endpoint.answer = lambda prompt, number: fault if number < 3 else says("At last.")
    (found,) = ask(study_at(endpoint, tmp_path), clock, "Well?")
    assert isinstance(found, Completion) and found.text == "At last."
    assert endpoint.asked["Well?"] == 3
    if pause is not None:
        assert clock.pauses == [pause, pause]
    else:
        first, second = clock.pauses
        assert 0.75 <= first <= 1.25 and 1.5 <= second <= 2.5


def test_an_endpoint_that_hangs_is_asked_again(
    endpoint: Endpoint, tmp_path: Path, clock: StoryClock
) -> None:
    over = threading.Event()

    def answer(prompt: str, number: int) -> Reply:
        if number == 1:
            over.wait(60)
        return says("Here.")

    endpoint.answer = answer
    try:
        (found,) = ask(study_at(endpoint, tmp_path, timeout_s=1), clock, "Well?")
    finally:
        over.set()
    assert isinstance(found, Completion) and endpoint.asked["Well?"] == 2


@pytest.mark.parametrize(
    ("fault", "words", "times"),
    [
        (fails(500, "out of memory"), "HTTP 500: out of memory", 4),
        (fails(400, "maximum context length"), "HTTP 400: maximum context length", 1),
        (says(None), "without text", 1),
        (says("", choices=[]), "without a choice", 4),
        (
            fails(429, retry_after="86400"),
            "HTTP 429: no (it asks to wait for 24.0 h)",
            1,
        ),
        (CUT, "the connection failed", 4),
    ],
    ids=["500", "400", "no text", "no choices", "429 until tomorrow", "cut"],
)
def test_what_does_not_pass_is_recorded_and_the_others_are_answered(
    endpoint: Endpoint,
    tmp_path: Path,
    clock: StoryClock,
    fault: Reply,
    words: str,
    times: int,
) -> None:
    study = study_at(endpoint, tmp_path)
    endpoint.answer = lambda prompt, _: (
        fault if prompt.startswith("Question 2 of 4k") else says("Fine.")
    )
    rows = rows_of(runner_of(study, clock).run(frame_of(study)))
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "ok", "failed", "ok"]
    assert words in rows[4]["reason"] and rows[4]["local_completion"] is None
    assert max(endpoint.asked.values()) == times
    endpoint.answer = lambda prompt, _: says("Now.")
    rows = rows_of(runner_of(study, clock).run(frame_of(study)))
    assert [row["local_completion"] for row in rows] == ["Fine."] * 4 + [
        "Now.",
        "Fine.",
    ]
    assert sum(endpoint.asked.values()) == 5 + times + 1


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (fails(401), UnauthorizedError, "refuses the key in OPENAI_API_KEY"),
        (fails(403), UnauthorizedError, "HTTP 403"),
        (fails(404), InvalidInputError, "knows no model"),
        (fails(429, code="insufficient_quota"), RefusedError, "quota is used up"),
        (says("Hi.", model="gpt-4o"), InvalidInputError, "answered as 'gpt-4o'"),
    ],
    ids=["401", "403", "404", "quota", "another model"],
)
def test_what_concerns_every_prompt_ends_the_run_at_once(
    endpoint: Endpoint,
    tmp_path: Path,
    clock: StoryClock,
    fault: Reply,
    kind: type[GpuyardError],
    words: str,
) -> None:
    endpoint.answer = lambda prompt, _: fault
    study = study_at(endpoint, tmp_path, concurrency=1)
    with pytest.raises(kind, match=words) as caught:
        runner_of(study, clock).run(frame_of(study))
    assert KEY not in str(caught.value)
    assert sum(endpoint.asked.values()) == 1
    assert set(runner_of(study).attach_metrics(frame_of(study))["status"]) == {
        "pending"
    }


@pytest.mark.parametrize(
    "name", ["tiny-8b", "tiny/Tiny-8B-2024-07-18", "owner/tiny-8b@main", ""]
)
def test_the_same_model_by_another_spelling(
    endpoint: Endpoint, tmp_path: Path, clock: StoryClock, name: str
) -> None:
    endpoint.answer = lambda prompt, _: says("Yes.", model=name)
    (found,) = ask(study_at(endpoint, tmp_path), clock, "Well?")
    assert isinstance(found, Completion) and found.model == name


@pytest.mark.parametrize(
    "name", ["tiny/Tiny-8B-Instruct", "tiny-8bx", "tiny-8b.1", "tiny", "Tiny-8B-70b"]
)
def test_another_model_of_a_like_name(
    endpoint: Endpoint, tmp_path: Path, clock: StoryClock, name: str
) -> None:
    endpoint.answer = lambda prompt, _: says("Yes.", model=name)
    with pytest.raises(InvalidInputError, match=f"set answers_as = '{name}'"):
        ask(study_at(endpoint, tmp_path), clock, "Well?")


def test_prompts_as_they_are(endpoint: Endpoint, tmp_path: Path) -> None:
    chat = study_at(endpoint, tmp_path)
    runner_of(chat).run(frame_of(chat))
    endpoint.answer = lambda prompt, _: says(f"{prompt[:8]} raw", chat=False)
    study = study_at(endpoint, tmp_path, api="completions")
    rows = rows_of(runner_of(study).run(frame_of(study)))
    assert {row["local_completion"] for row in rows} == {"Question raw"}
    assert {row["local_api"] for row in rows} == {"completions"}
    assert [request.get("prompt") for request in endpoint.requests[:6]] == [None] * 6
    assert {request["prompt"] for request in endpoint.requests[6:]} == {
        row["prompt"] for row in rows
    }
    assert set(runner_of(chat).attach_metrics(frame_of(chat))["status"]) == {"ok"}


def test_a_name_that_the_study_allows(
    endpoint: Endpoint, tmp_path: Path, clock: StoryClock
) -> None:
    endpoint.answer = lambda prompt, _: says("Yes.", model="served")
    (found,) = ask(study_at(endpoint, tmp_path, answers_as="served"), clock, "Well?")
    assert isinstance(found, Completion)


def test_limits_are_kept(endpoint: Endpoint, tmp_path: Path, clock: StoryClock) -> None:
    study = study_at(endpoint, tmp_path, requests_per_minute=2, concurrency=1)
    found = ask(study, clock, *(f"Prompt {number}" for number in range(6)))
    assert all(isinstance(one, Completion) for one in found)
    assert 120 <= clock.at < 121


def test_nobody_listens(tmp_path: Path, clock: StoryClock) -> None:
    with serve() as gone:
        study = study_at(gone, tmp_path)
    with pytest.raises(UnreachableError, match="cannot be reached"):
        runner_of(study, clock).run(frame_of(study))
    # Whoever is asked first has waited for it; nobody else need.
    assert len(clock.pauses) <= 3 * 3


def test_one_baseline_at_a_time(endpoint: Endpoint, tmp_path: Path) -> None:
    study = study_at(endpoint, tmp_path)
    inside = threading.Event()
    over = threading.Event()

    def answer(prompt: str, number: int) -> Reply:
        inside.set()
        over.wait(60)
        return says("Yes.")

    endpoint.answer = answer
    first = threading.Thread(target=lambda: runner_of(study).run(frame_of(study)))
    first.start()
    try:
        assert inside.wait(60)
        with pytest.raises(RefusedError, match="Another baseline"):
            runner_of(study).run(frame_of(study))
    finally:
        over.set()
        first.join()
    assert set(endpoint.asked.values()) == {1}


def command(study: Study, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *gpuyard("study"),
            "study",
            "baseline",
            str(study.directory),
            *words,
        ],
        env={**os.environ, **ENVIRONMENT, **NO_SERVER},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def command_here(study: Study, *words: str) -> Any:
    """The same command in this process."""
    runner = CliRunner(env={**ENVIRONMENT, **NO_SERVER})
    return runner.invoke(app, ["study", "baseline", str(study.directory), *words])


@pytest.mark.timeout(170)
@pytest.mark.parametrize("before", [0, 4])
def test_a_run_that_is_killed_pays_for_no_answer_twice(
    endpoint: Endpoint, tmp_path: Path, before: int
) -> None:
    study = study_at(endpoint, tmp_path, concurrency=2)
    journal = study.results / "baseline.jsonl"
    over = threading.Event()
    places = threading.Semaphore(before)

    def answer(prompt: str, number: int) -> Reply:
        while not places.acquire(timeout=0.01):
            if over.is_set():
                break
        return says("Yes.")

    def kept() -> list[str]:
        return journal.read_text().splitlines() if journal.exists() else []

    endpoint.answer = answer
    killed = command(study)
    try:
        wait_until(
            lambda: (
                len(kept()) == before and sum(endpoint.asked.values()) == before + 2
            ),
            what="answers",
        )
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
    paid = {json.loads(line)["key"][0] + json.loads(line)["key"][1] for line in kept()}
    with journal.open("a") as file:
        # As if it had been cut off while it wrote.
        file.write('{"key": ["p03", "4k", "tiny')
    over.set()
    resumed = command(study)
    said, _ = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, said
    assert "6 of 6 prompts are answered" in said
    rows = rows_of(read_table(study.baseline_table))
    assert {row["status"] for row in rows} == {"ok"}
    for row in rows:
        times = endpoint.asked[row["prompt"]]
        assert times == 1 if row["prompt_id"] + row["variant"] in paid else times <= 2
    assert sum(endpoint.asked.values()) == 6 + 2  # those in flight, and no more


def test_the_command_says_what_has_no_answer(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    study = study_at(endpoint, tmp_path)
    endpoint.answer = lambda prompt, _: (
        fails(400, "too long") if prompt.startswith("Question 1") else says("Yes.")
    )
    done = command_here(study, "--variant", "4k", "--limit", "2")
    said = done.stdout
    assert done.exit_code == 4, done.output
    assert (
        "failed   p01 of 4k: HTTP 400" in said and "1 of 2 prompts are answered" in said
    )
    rows = rows_of(read_table(study.baseline_table))
    assert [row["status"] for row in rows] == ["pending"] * 3 + [
        "failed",
        "ok",
        "pending",
    ]
    done = command_here(study, "--variant", "4k", "--limit", "2", "--json")
    report = json.loads(done.stdout)
    assert report["answered"] == 1
    assert report["failed"][0]["prompt_id"] == "p01"


def test_the_command_asks_anew_on_demand(endpoint: Endpoint, tmp_path: Path) -> None:
    study = study_at(endpoint, tmp_path)
    for words in (
        (),
        ("--no-override",),
        ("--override", "--variant", "4k", "--limit", "2"),
    ):
        done = command_here(study, *words)
        assert done.exit_code == 0, done.output
    asked = {
        row["prompt_id"] + row["variant"]: endpoint.asked[row["prompt"]]
        for row in rows_of(frame_of(study))
    }
    assert asked == {
        "p012k": 1,
        "p022k": 1,
        "p032k": 1,
        "p014k": 2,
        "p024k": 2,
        "p034k": 1,
    }


def test_without_a_key_nothing_is_sent(endpoint: Endpoint, tmp_path: Path) -> None:
    study = study_at(endpoint, tmp_path, api_key_env="NO_SUCH_KEY")
    done = command(study)
    said, _ = done.communicate(timeout=60)
    assert done.returncode == 2 and "NO_SUCH_KEY is not set" in said
    assert not endpoint.requests
