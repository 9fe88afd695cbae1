"""What is said while samples are made for the first time."""

from gpuyard.verification.classes import PracticeClass
from gpuyard.verification.preparation import PreparationProgress


def test_the_first_run_says_how_long_it_may_take_and_then_by_its_pace() -> None:
    progress = PreparationProgress(PracticeClass.PRACTICE_12, 1, 10.0, began_at=100.0)
    assert progress.words(0, 0, 100.0) == (
        "class practice-12: 0 of 1 samples are ready, 0 of 12 series; these are made"
        " once. It takes 2m10s at most."
    )
    assert progress.words(0, 0, 101.0) == "", "nothing has changed"
    assert progress.words(4, 0, 108.0) == (
        "class practice-12: 0 of 1 samples are ready, 4 of 12 series; these are made"
        " once. About 18s are left."
    )
    assert progress.words(12, 0, 124.0) == (
        "class practice-12: 0 of 1 samples are ready. About 2s are left."
    )
    assert progress.words(12, 12, 126.0) == "class practice-12: 12 samples are ready."


def test_a_later_run_needs_only_its_workloads() -> None:
    progress = PreparationProgress(PracticeClass.PRACTICE_12, 13, 10.0, began_at=0.0)
    assert progress.words(12, 0, 0.0) == (
        "class practice-12: 0 of 13 samples are ready. It takes 20s at most."
    )
