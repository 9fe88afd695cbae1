"""Levels and sections of lines, as real programs print them."""

import pytest

from gpuyard.insight.log_levels import level_of
from gpuyard.insight.log_patterns import PatternFinder
from gpuyard.insight.log_sections import LineClassifier


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("WARNING:root:careful", "warning"),
        ("ERROR: no such file", "error"),
        ("2026-11-28 20:00:00,123 - train - ERROR - it broke", "error"),
        ("2026-11-28 20:00:00,123 INFO train: loss of the error term 0.3", "info"),
        ("2026-11-28 20:00:00.123 | CRITICAL | app:main:3 - gone", "critical"),
        ("[WARNING|trainer.py:12] 2026-11-28 20:00:00 >> slow", "warning"),
        ("[2026-11-28 20:00:00,1][train][DEBUG] - x", "debug"),
        ("2026-11-28 20:00:00 [warning  ] no GPU   n=3", "warning"),
        ("I1128 20:00:00.123456 140 train.py:12] starts", "info"),
        ("[rank1]:[E1128 20:00:00.1 ProcessGroupNCCL.cpp:5] timed out", "error"),
        ("F0101 00:00:00.000000 1 x.cc:1] Check failed", "critical"),
        ("2026-11-28 20:00:00.123456: W tensorflow/core/x.cc:1] no", "warning"),
        ('{"level": "error", "msg": "x"}', "error"),
        ("ts=1 level=warn msg=slow", "warning"),
        ("/a/b.py:3: UserWarning: deprecated", "warning"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "error"),
        ("srun: error: node7: task 0: Killed", "error"),
        ("h:1:2 [0] x.cc:9 NCCL WARN Cuda failure", "warning"),
        (" 45%|####  | 45/100 [00:01<00:01, 9.9it/s]ERROR:root:boom", "error"),
        ("(train pid=12, ip=10.0.0.1) INFO: hello", "info"),
        (" 45%|####  | 45/100 [00:01<00:01, 9.9it/s]", None),
        ("step 3 loss=0.5 error=0.1", None),
        ("Information is an error in disguise", None),
    ],
)
def test_the_level_of_a_line(line: str, level: str | None) -> None:
    assert level_of(line) == level


RUN = """\
Loading data for 10 epochs
Epoch 1/2
 45%|####  | 45/100 [00:01<00:01, 9.9it/s]
***** Running Evaluation *****
{'eval_loss': 0.3, 'epoch': 1.0}
Train Epoch: 2 [0/60000 (0%)] Loss: 0.3
best epoch: 1
"""
SECTIONS = [
    "setup",
    "epoch:1",
    "epoch:1",
    "epoch:1/evaluation",
    "epoch:1/evaluation",
    "epoch:2",
    "epoch:2",
]


def test_sections_of_a_run() -> None:
    classifier = LineClassifier()
    found = [classifier.feed(line).section for line in RUN.splitlines()]
    assert found == SECTIONS


def test_only_lines_with_marks_need_to_be_read() -> None:
    classifier = LineClassifier()
    for line, section in zip(RUN.splitlines(), SECTIONS, strict=True):
        if PatternFinder(classifier.marks).find(line.encode(), 0) >= 0:
            classifier.feed(line)
        assert classifier.section == section


NESTED = """\
epoch 7
Traceback (most recent call last):
  File "a.py", line 1, in f
    g()
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
ValueError: bad
goes on"""


def test_a_chained_traceback_is_one_section() -> None:
    classifier = LineClassifier()
    kinds = [classifier.feed(line) for line in NESTED.splitlines()]
    assert [kind.section for kind in kinds] == [
        "epoch:7",
        *["epoch:7/traceback"] * 10,
        "epoch:7",
    ]
    assert {kind.level for kind in kinds[1:-1]} == {"error"}
    assert kinds[-1].level is None


RANKS = """\
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "a.py", line 1
a word of the launcher
[rank1]:   File "a.py", line 1
[rank0]: RuntimeError: NCCL error
[rank1]: RuntimeError: NCCL error
[rank0]: done"""


def test_tracebacks_of_several_ranks_are_told_apart() -> None:
    classifier = LineClassifier()
    is_inside = [
        "traceback" in classifier.feed(line).section for line in RANKS.splitlines()
    ]
    assert is_inside == [True, True, True, False, True, True, True, False]


def test_a_rank_that_died_within_a_traceback_holds_up_nothing() -> None:
    classifier = LineClassifier()
    classifier.feed("[rank3]: Traceback (most recent call last):")
    for _ in range(300):
        classifier.feed("[rank0]: step 1")
    assert not classifier.in_traceback


@pytest.mark.parametrize(
    "line", ["epoch" * 20_000, "[" * 99_999, "epoch" + " " * 99_999]
)
def test_hostile_lines_take_no_long(line: str) -> None:
    classifier = LineClassifier()
    for _ in range(50):
        classifier.feed(line)
    assert classifier.section == "setup"
