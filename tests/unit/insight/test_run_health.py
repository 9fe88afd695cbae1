"""What is found wrong with a run, by its curves; and what is not."""

import random
from collections.abc import Iterable

import pytest

from gpuyard.insight.progress import ProgressReader
from gpuyard.insight.run_health import (
    Finding,
    RunHealth,
    Topic,
    is_loss,
    not_finite_loss,
)

HOUR_S = 3600
EVERY_S = 10


def health(cpus: float = 4, memory_mb: float = 16_000, gpus: int = 1) -> RunHealth:
    return RunHealth(cpus, memory_mb, gpus)


def found(health: RunHealth, name: str, values: Iterable[float]) -> list[Finding]:
    """What is found when a curve has these values, one each ten seconds."""
    findings = [
        health.see(name, step, value, EVERY_S * step)
        for step, value in enumerate(values)
    ]
    return [finding for finding in findings if finding]


def test_a_gpu_that_does_nothing_is_found_once_after_five_minutes():
    run = health()
    assert found(run, "system/gpu0_utilization", [0.0] * 30) == []
    (finding,) = found(run, "system/gpu0_utilization", [0.0] * 1000)
    assert finding.topic is Topic.GPU_IDLE
    assert "GPU 0 has done nothing for 5 minutes" in str(finding)


def test_a_gpu_that_works_now_and_then_is_not_idle():
    values = [0.9 if step % 25 == 0 else 0.0 for step in range(1000)]
    assert found(health(), "system/gpu0_utilization", values) == []


@pytest.mark.parametrize(
    ("cores", "busy", "topics"),
    [
        (3.9, 0.3, [Topic.GPU_STARVED]),
        (3.9, 0.8, []),
        (1.0, 0.3, []),
    ],
)
def test_a_gpu_waits_for_data_if_all_cores_are_busy_and_it_is_not(
    cores: float, busy: float, topics: list[Topic]
):
    run = health(cpus=4)
    findings: list[Finding | None] = []
    for at in range(0, HOUR_S, EVERY_S):
        findings += [
            run.see("system/cpu_cores", None, cores, at),
            run.see("system/gpu0_utilization", None, busy, at),
        ]
    assert [finding.topic for finding in findings if finding] == topics


def test_memory_that_grows_all_the_time_is_found_with_the_time_that_is_left():
    values = [1000 + step * 10 for step in range(300)]  # 60 MB a minute
    (finding,) = found(health(memory_mb=16_000), "system/memory_mb", values)
    assert finding.topic is Topic.MEMORY_GROWS
    assert "by 60 MB a minute for 30 minutes" in finding.detail
    assert "In 3.6 h it reaches its 16.0 GB" in finding.detail


@pytest.mark.parametrize(
    "values",
    [
        [1000 + (step % 20) * 400 for step in range(1000)],  # comes and goes
        [min(1000 + step * 100, 9000) for step in range(1000)],  # until it has all
        [1000 + step * 0.01 for step in range(1000)],  # next to nothing
    ],
)
def test_memory_that_stays_below_something_does_not_grow(values: list[float]):
    assert found(health(), "system/memory_mb", values) == []


def test_without_a_limit_nobody_knows_what_much_memory_is():
    values = [float(step * 10) for step in range(1000)]
    assert found(health(memory_mb=0), "system/memory_mb", values) == []


def test_a_loss_that_rises_is_found_with_the_step_of_its_lowest():
    noise = random.Random(0)
    falls = [2 - step / 200 + noise.uniform(-0.2, 0.2) for step in range(200)]
    rises = [1 + step / 20 + noise.uniform(-0.2, 0.2) for step in range(200)]
    (finding,) = found(health(), "train/loss", falls + rises)
    assert finding.topic is Topic.LOSS_RISES
    assert "was 1.0" in finding.detail
    assert "at step 199" in finding.detail


def test_a_noisy_loss_that_falls_does_not_rise():
    noise = random.Random(0)
    values = [2 - step / 1000 + noise.uniform(-0.9, 0.9) for step in range(1000)]
    assert found(health(), "loss", values) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss", True),
        ("Train/Loss", True),
        ("val_loss", True),
        ("eval loss", True),
        ("d_loss", False),
        ("policy_loss", False),
        ("loss_scale", False),
        ("accuracy", False),
    ],
)
def test_only_losses_that_should_fall_are_watched(name: str, expected: bool):
    assert is_loss(name) is expected


def test_the_first_loss_that_is_no_number_is_told():
    reader = ProgressReader()
    reader.feed(b"step 1/10 loss=0.5\n", 1.0)
    assert reader.not_finite is None
    reader.feed(b"step 2/10 loss=nan\nstep 3/10 loss=inf\n", 2.0)
    assert reader.not_finite == "loss is nan at step 2"
    run = health()
    finding = run.see_not_finite(reader.not_finite)
    assert finding
    assert "loss is nan at step 2. Lower the learning rate" in str(finding)
    assert run.see_not_finite(reader.not_finite) is None


@pytest.mark.parametrize(
    "line",
    [
        "iter 3: loss nan, time 54.74ms, mfu 0.02%",
        "{'loss': nan, 'grad_norm': 1.0, 'epoch': 0.1}",
        "Epoch 3: 100%|##| 10/10 [00:01, train_loss=inf]",
        "1/9 - 0s - loss: -inf",
    ],
)
def test_a_loss_that_is_no_number_is_seen_in_usual_lines(line: str):
    assert not_finite_loss(line)


@pytest.mark.parametrize(
    "line", ["loss: info", "loss 0.5", "d_loss=nan", "no loss; inf is a number"]
)
def test_and_in_no_others(line: str):
    assert not_finite_loss(line) is None
