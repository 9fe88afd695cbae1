"""The command line of the training program."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def options(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    monkeypatch.delenv("GPUYARD_RESUME_FROM", raising=False)
    return load("options")


def test_defaults_follow_the_size_and_yield_to_arguments(options: ModuleType) -> None:
    baby = options.parse([])
    gpt2 = options.parse(["--size", "gpt2", "--steps", "7"])
    assert (baby.block_size, baby.tokenizer, baby.resume) == (64, "char", None)
    assert (gpt2.block_size, gpt2.tokenizer, gpt2.save_every, gpt2.steps) == (
        1024,
        "bpe",
        1000,
        7,
    )


def test_resume_comes_from_the_environment_unless_told(
    options: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_RESUME_FROM", "a.pt")
    assert options.parse([]).resume == Path("a.pt")
    assert options.parse(["--resume", "b.pt"]).resume == Path("b.pt")
    monkeypatch.setenv("GPUYARD_RESUME_FROM", "")
    assert options.parse([]).resume is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--size", "huge"], "--size: invalid choice: 'huge'"),
        (
            ["--steps", "0"],
            "--steps: must be a whole number from 1 to 2**63 - 1, not '0'",
        ),
        (
            ["--steps", "ten"],
            "--steps: must be a whole number from 1 to 2**63 - 1, not 'ten'",
        ),
        (
            ["--batch-size", "-3"],
            "--batch-size: must be a whole number from 1 to 2**63 - 1, not '-3'",
        ),
        (
            ["--block-size", "1"],
            "--block-size: must be a whole number from 2 to 2**63 - 1, not '1'",
        ),
        (["--size"], "--size: expected one argument"),
        (
            ["--seed", "-1"],
            "--seed: must be a whole number from 0 to 2**63 - 1, not '-1'",
        ),
        (
            ["--seed", "1" * 30],
            "--seed: must be a whole number from 0 to 2**63 - 1, not '1111",
        ),
        (
            ["--steps", "1.5"],
            "--steps: must be a whole number from 1 to 2**63 - 1, not '1.5'",
        ),
        (["--keep", "0"], "--keep: must be a whole number from 1 to 2**63 - 1"),
        (["--lr", "0"], "--lr: must be a number above 0, not '0'"),
        (["--lr", "nan"], "--lr: must be a number above 0, not 'nan'"),
        (["--lr", "inf"], "--lr: must be a number above 0, not 'inf'"),
        (["--dropout", "1"], "--dropout: must be a number from 0 up to 1, not '1'"),
        (["--min-lr", "0.5"], "--min-lr: must be at most --lr (0.002), not 0.5"),
        (["--tokenizer", "words"], "--tokenizer: invalid choice: 'words'"),
        (["--step", "5"], "unrecognized arguments: --step 5"),
    ],
)
def test_bad_arguments_get_one_line(
    options: ModuleType,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    with pytest.raises(SystemExit) as caught:
        options.parse(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_learning_rate_rises_in_a_line_and_falls_in_a_cosine(
    options: ModuleType,
) -> None:
    chosen = options.parse(
        ["--steps", "110", "--warmup", "10", "--lr", "1", "--min-lr", "0.2"]
    )
    rates = [chosen.learning_rate(step) for step in range(111)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == max(rates) == 1
    assert rates[60] == pytest.approx(0.6)  # half-way down
    assert rates[110] == pytest.approx(0.2)
    assert all(later < earlier for earlier, later in pairwise(rates[10:]))


def test_learning_rate_without_room_to_fall(options: ModuleType) -> None:
    short = options.parse(["--steps", "3", "--warmup", "100"])
    none = options.parse(["--steps", "1", "--warmup", "0"])
    assert short.learning_rate(2) == pytest.approx(short.lr * 0.03)
    assert math.isclose(none.learning_rate(0), none.lr)
