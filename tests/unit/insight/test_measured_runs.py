"""What runs say of the next run of a program."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.program_needs import MeasuredNeeds, MeasuredTime, ProgramNeeds
from gpuyard.insight.measured_runs import (
    Asked,
    PastRun,
    measured_needs,
    started_program,
)

SAME = "a" * 64
OTHER = "b" * 64
KIND = "c" * 64
NEEDS = ProgramNeeds(digest=SAME, kind=KIND, gpus=1, memory_gb=10, teraflops=1000)
PROGRAM = started_program(["python3", "train.py", "--lr", "1"], "/home/ana")
RUN = PastRun(
    job_id="job_1",
    user="ana",
    project=None,
    program=PROGRAM,
    needs=NEEDS,
    gpu_class="a10g",
    gpus=1,
    gpu_memory_gb=24,
    peak_gb=12,
    ran_s=100,
    reason=None,
)
ASKED = Asked(NEEDS, PROGRAM, "ana", None)


def said(runs: Sequence[PastRun], **asked: Any) -> MeasuredNeeds:
    """What is known from runs, newest first."""
    return measured_needs(runs, replace(ASKED, **asked))


def peak(runs: Sequence[PastRun], **asked: Any) -> float | None:
    own = said(runs, **asked).own
    return own.peak_gb if own else None


def times(runs: Sequence[PastRun], **asked: Any) -> list[MeasuredTime]:
    own = said(runs, **asked).own
    return own.times if own else []


def test_a_program_is_found_by_its_place() -> None:
    wanted = started_program(["/usr/bin/python3", "../ana/train.py"], "/home/ben")
    assert wanted is not None
    assert wanted.place == "/home/ana/train"
    launched = ["torchrun", "--nproc-per-node", "2", "-m", "pkg.train", "-x"]
    module = started_program(launched, "/w")
    assert module is not None
    assert (module.place, module.arguments) == ("/w/pkg/train", ("-x",))
    file = started_program(["python", "-m", "torch.distributed.run", "a.py"], "/w")
    assert file is not None
    assert file.place == "/w/a"
    package = started_program(["python", "/w/pkg/__main__.py"], None)
    assert package is not None
    assert package.place == "/w/pkg"
    assert started_program(["sleep", "1"], "/w") is None


def test_the_peak_is_that_of_all_runs_of_the_program() -> None:
    runs = [RUN, replace(RUN, job_id="job_2", peak_gb=14), replace(RUN, peak_gb=11)]
    own = said(runs).own
    assert own is not None
    assert (own.peak_gb, own.job_id, own.runs) == (14, "job_2", 3)
    assert not own.is_changed


@pytest.mark.parametrize(
    "change",
    [
        {"user": "ben"},
        {"is_hidden": True},
        {"gpus": 2},
        {"reason": "exit_code"},
        {"peak_gb": None, "ran_s": 1, "reason": "cancelled"},
        {"needs": NEEDS.model_copy(update={"kind": OTHER})},
        {
            "needs": NEEDS.model_copy(update={"digest": OTHER}),
            "program": started_program(["python3", "other.py"], "/home/ana"),
        },
    ],
)
def test_other_runs_do_not_count(change: dict[str, Any]) -> None:
    assert peak([replace(RUN, **change)]) is None


def test_a_colleague_of_the_project_and_a_copy_elsewhere_count() -> None:
    of_ben = replace(RUN, user="ben", project="vision")
    assert peak([of_ben], project="vision") == 12
    copy = started_program(["python3", "copy.py"], "/tmp")
    assert peak([replace(RUN, program=copy)]) == 12
    # One that failed late has shown its memory.
    assert peak([replace(RUN, reason="exit_code", ran_s=3600)]) == 12
    edited = replace(RUN, needs=NEEDS.model_copy(update={"digest": OTHER}))
    own = said([edited]).own
    assert own is not None
    assert own.is_changed


def test_without_a_known_model_the_arguments_decide() -> None:
    unknown = NEEDS.model_copy(update={"kind": None, "memory_gb": None})
    bare = replace(RUN, needs=None)

    def peak_with(*arguments: str) -> float | None:
        program = started_program(["python3", "train.py", *arguments], "/home/ana")
        return peak([bare], needs=unknown, program=program)

    assert peak_with("--lr", "2") == 12
    assert peak_with("--lr=3", "--seed", "5", "--num-epochs", "9") == 12
    assert peak_with("--lr", "1", "--width", "4096") is None


def test_a_run_that_lacked_memory_counts_until_one_had_enough() -> None:
    failed = replace(RUN, job_id="job_9", reason="gpu_out_of_memory", gpu_memory_gb=16)
    own = said([failed, RUN]).own
    assert own is not None
    assert (own.failed_on_gb, own.failed_job_id, own.peak_gb) == (16, "job_9", 12)
    own = said([RUN, failed]).own
    assert own is not None
    assert own.failed_on_gb is None


def test_times_are_those_of_the_same_work() -> None:
    runs = [replace(RUN, ran_s=seconds) for seconds in (90, 100, 500)]
    runs.append(replace(RUN, ran_s=7, is_whole=False))
    (time,) = times(runs)
    assert (time.gpu_class, time.seconds, time.runs) == ("a10g", 100, 3)
    twice = NEEDS.model_copy(update={"teraflops": 2000})
    (time,) = times(runs, needs=twice)
    assert time.seconds == 200


def test_others_teach_a_factor_in_which_each_user_counts_once() -> None:
    of_ben = replace(RUN, user="ben", program=None, peak_gb=15)
    of_eve = replace(RUN, user="eve", program=None, peak_gb=1000)
    found = said([of_ben, of_ben, *[of_eve] * 9], user="zoe")
    assert found.own is None
    assert found.alike is not None
    # What is absurd is cut off, and counts as one of two.
    assert found.alike.memory == pytest.approx((1.5 + 3) / 2)
    assert found.alike.gpu_s_per_teraflop == {"a10g": 0.1}
    lacked = replace(of_ben, reason="gpu_out_of_memory", peak_gb=None)
    alike = said([lacked], user="zoe").alike
    assert alike is not None
    assert alike.memory == 2.4


def test_runs_of_hidden_projects_teach_only_if_they_are_of_several_users() -> None:
    hidden = [
        replace(RUN, user=user, job_id=f"job_{user}{n}", is_hidden=True)
        for user in ("ben", "eve", "ida")
        for n in range(3)
    ]
    assert said(hidden[:6], user="zoe").alike is None
    # Who asks is one of the three, and knows the own runs.
    assert said(hidden, user="ida").alike is None
    alike = said(hidden[:-1], user="zoe").alike
    assert alike is not None
    assert (alike.runs, alike.memory) == (6, 1.2), "the number is not exact"


def test_each_answer_has_hidden_runs_of_several_users_or_none() -> None:
    users = ("ben", "eve", "ida")
    hidden = [replace(RUN, user=user, job_id=user, is_hidden=True) for user in users]
    rare = replace(hidden[0], gpu_class="h100", peak_gb=None)
    mine = replace(RUN, user="zoe", job_id="mine", gpu_class="l4", peak_gb=None)
    alike = said([*hidden, rare, mine], user="zoe").alike
    assert alike is not None
    assert set(alike.gpu_s_per_teraflop) == {"a10g", "l4"}
    alike = said([*hidden[:2], mine], user="zoe").alike
    assert alike is not None
    assert (alike.runs, alike.memory, alike.gpu_s_per_teraflop) == (
        1,
        None,
        {"l4": 0.1},
    )


_RUNS = st.builds(
    replace,
    st.just(RUN),
    user=st.sampled_from(["ana", "ben", "eve"]),
    project=st.sampled_from([None, "vision", "secret"]),
    peak_gb=st.one_of(st.none(), st.floats(0.1, 80)),
    ran_s=st.floats(0, 10_000),
    reason=st.sampled_from([None, "exit_code", "gpu_out_of_memory"]),
    gpu_memory_gb=st.sampled_from([None, 16.0, 24.0]),
    needs=st.sampled_from([NEEDS, None, NEEDS.model_copy(update={"digest": OTHER})]),
)


@given(st.lists(_RUNS, max_size=8))
def test_nothing_of_others_is_named_and_no_peak_is_forgotten(
    runs: list[PastRun],
) -> None:
    seen = [
        replace(run, job_id=f"job_of_{n}", is_hidden=run.project == "secret")
        for n, run in enumerate(runs)
    ]
    found = said(seen)
    mine = {run.job_id for run in seen if run.user == "ana" and not run.is_hidden}
    text = found.model_dump_json()
    for run in seen:
        assert run.job_id in mine or f'"{run.job_id}"' not in text
    assert not any(name in text for name in ("ben", "eve", "secret", "home"))
    own = found.own
    if own is not None and own.peak_gb is not None:
        (run, *_) = [run for run in seen if run.job_id == own.job_id]
        assert run.user == "ana"
        whole = [each for each in seen if each.job_id in mine and each.has_completed]
        peaks = [each.peak_gb for each in whole if each.peak_gb]
        assert own.peak_gb >= max(peaks, default=0)
    alike = found.alike
    if alike is not None and alike.memory is not None:
        assert 0.5 <= alike.memory <= 3
