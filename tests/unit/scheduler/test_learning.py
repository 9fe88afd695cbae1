"""What is learned of durations."""

import pytest

from gpuyard.scheduler.learning import ENOUGH, Learning, job_type


@pytest.mark.parametrize(
    ("name", "labels", "kind"),
    [
        ("train-resnet-017", {}, "train-resnet"),
        ("eval", {}, "eval"),
        ("42", {}, "42"),
        ("run-3", {"type": "sweep"}, "sweep"),
    ],
)
def test_jobs_of_a_name_without_its_digits_are_of_one_type(name, labels, kind):
    assert job_type(name, labels) == kind


def test_short_jobs_are_worth_more_once_enough_is_known():
    learning = Learning()
    for _ in range(ENOUGH // 2):
        assert learning.index("short", 1, 0.0) == learning.index("long", 1, 0.0) == 0.0
        learning.add("short", 1, 10.0)
        learning.add("long", 1, 10_000.0)
    assert learning.index("short", 1, 0.0) > learning.index("long", 1, 0.0) > 0.0


def test_a_job_that_has_outlived_its_like_is_worth_less():
    learning = Learning()
    for _ in range(ENOUGH):
        learning.add("short", 1, 10.0)
    assert learning.index("short", 1, 1000.0) < learning.index("short", 1, 0.0)


@pytest.mark.parametrize("duration_s", [0.0, -3600.0])
def test_a_duration_that_a_clock_made_nonsense_of_breaks_nothing(duration_s):
    learning = Learning()
    for _ in range(ENOUGH + 1):
        learning.add("any", 1, duration_s)
    assert learning.mean_s > 0
    assert learning.index("any", 1, 0.0) > 0


def test_types_beyond_what_is_kept_apart_are_one():
    learning = Learning()
    kinds = {
        learning.type_of(f"name{chr(0x4E00 + number)}", {}) for number in range(3000)
    }
    assert "" in kinds
    assert len(kinds) <= 1025
