"""A file that W&B has kept of a run, and what is none."""

import struct
from pathlib import Path

import pytest

from gpuyard.insight.run_health import is_loss
from gpuyard.insight.wandb_files import RUN_FILE, _pieces, _scalars_of, wandb_scalars_in

DATA = (Path(__file__).parent / "event_files" / "wandb").read_bytes()
HEADER = DATA[:7]


def values(data: bytes, offset: int = 0) -> list[tuple[str, int, float]]:
    scalars, _ = wandb_scalars_in(data, offset)
    return [(each.tag, each.step, each.value) for each in scalars]


def test_numbers_are_read_with_their_steps_and_nothing_else() -> None:
    assert values(DATA) == [
        ("loss", 0, 1.0),
        ("train.acc", 0, 0.0),
        ("loss", 1, 0.5),
        ("train.acc", 1, 0.5),
        ("loss", 2, pytest.approx(1 / 3)),
        ("train.acc", 2, 1.0),
        ("loss", 3, 0.125),
    ]
    (first, *_), size = wandb_scalars_in(DATA, 0)
    assert size == len(DATA)
    assert first.at > 1_700_000_000


def test_a_file_that_grows_is_read_where_it_was_left() -> None:
    found: list[tuple[str, int, float]] = []
    at = 0
    for end in range(0, len(DATA) + 13, 13):
        part = DATA[at:end]
        found += values(part, at)
        at += wandb_scalars_in(part, at)[1]
    assert (found, at) == (values(DATA), len(DATA))


def piece(kind: int, content: bytes) -> bytes:
    return struct.pack("<IHB", 0, len(content), kind) + content


def test_a_record_may_lie_in_several_blocks() -> None:
    (first, *_), _ = wandb_scalars_in(DATA, 0)
    records = [content for _, content, _ in _pieces(DATA, len(HEADER), 0)]
    record = next(each for each in records if _scalars_of(each))
    filling = (1 << 15) - 7 - 7 - 7 - 20
    rest = piece(1, b"\xff" * filling) + piece(2, record[:20])
    # Six bytes are too few for a piece, so they are left empty.
    cut = piece(1, b"\xff" * (filling - 6)) + piece(2, record[:20]) + bytes(6)
    for start in (rest, cut):
        data = HEADER + start + piece(4, record[20:])
        assert values(data)[0] == (first.tag, first.step, first.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"step 1 loss 0.5\n", "no file of W&B"),
        (HEADER + piece(9, b"x"), "of kind 9"),
        (HEADER + 9 * piece(2, b"x" * 32_000), ""),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, words: str) -> None:
    if words:
        with pytest.raises(ValueError, match=words):
            wandb_scalars_in(data, 0)
    else:
        assert wandb_scalars_in(data, 0) == ([], len(HEADER))


def test_names() -> None:
    assert RUN_FILE.fullmatch("run-dvabik2l.wandb")
    assert not RUN_FILE.fullmatch("run-dvabik2l.wandb.synced")
    assert is_loss("wandb/train/loss")
