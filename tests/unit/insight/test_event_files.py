"""Event files that tensorboardX and TensorBoard have written, and what is none."""

import struct
from pathlib import Path

import pytest

from gpuyard.insight.event_files import EVENT_FILE, CurveNames, scalars_in

FILES = Path(__file__).parent / "event_files"
# The length of a record as it stands in each of these files, with its check sum.
FIRST = (FILES / "tensorboardX").read_bytes()[:12]


def values(data: bytes) -> list[tuple[str, int, float]]:
    scalars, _ = scalars_in(data)
    return [(each.tag, each.step, each.value) for each in scalars]


def test_scalars_of_both_forms_are_read_and_nothing_else() -> None:
    old = (FILES / "tensorboardX").read_bytes()
    assert values(old) == [
        ("train/loss", 0, 1.0),
        ("train/loss", 1, 0.5),
        ("train/loss", 2, pytest.approx(1 / 3)),
        ("train/loss", 3, 0.125),
    ]
    (first, *_), size = scalars_in(old)
    assert size == len(old)
    assert first.at > 1_700_000_000
    new = (FILES / "tensorboard").read_bytes()
    assert values(new) == [("epoch_loss", step, 0.5**step) for step in range(3)]
    assert values((FILES / "hparams").read_bytes()) == [("accuracy", 0, 0.5)]


def test_a_file_that_grows_is_read_where_it_was_left() -> None:
    data = (FILES / "tensorboardX").read_bytes()
    found: list[tuple[str, int, float]] = []
    at = 0
    for end in range(0, len(data) + 7, 7):
        part = data[at:end]
        found += values(part)
        at += scalars_in(part)[1]
    assert (found, at) == (values(data), len(data))


def test_a_long_record_is_passed_over() -> None:
    from gpuyard.insight.event_files import _check_sum

    length = struct.pack("<Q", 5_000_000)
    header = length + struct.pack("<I", _check_sum(length))
    assert scalars_in(header + b"picture") == ([], 12 + 5_000_000 + 4)


def test_what_is_no_event_file_is_refused_and_a_damaged_event_left_out() -> None:
    with pytest.raises(ValueError, match="no record begins at byte 0"):
        scalars_in(b"step 1 loss 0.5\n")
    size = struct.unpack("<Q", FIRST[:8])[0]
    for filling in (b"\xff", b"\x0a", b"\x2a"):
        assert scalars_in(FIRST + filling * size + b"1234") == ([], size + 16)


@pytest.mark.parametrize(
    ("name", "pid"),
    [
        ("events.out.tfevents.1764371000.gpu-1.12345.0", "12345"),
        ("events.out.tfevents.1764371000.10.0.0.1.12345.0", "12345"),
        ("events.out.tfevents.1764371000.gpu.lab.edu.99.3.v2", "99"),
        ("events.out.tfevents.1764371000.gpu-1", None),
        ("events.out.tfevents.1764371000.gpu-1.profile-empty", None),
    ],
)
def test_the_name_says_when_and_by_whom(name: str, pid: str | None) -> None:
    match = EVENT_FILE.match(name)
    assert match
    assert (match["begun"], match["pid"]) == ("1764371000", pid)


def test_curves_are_named_alike_in_each_run() -> None:
    def named(*places: tuple[str, str]) -> list[str]:
        names = CurveNames()
        for folder, _ in places:
            names.add_folder(folder)
        return [names.name(folder, tag) for folder, tag in places]

    # One folder with the time of the run; the parts of a run; lines of one picture.
    assert named(("runs/Nov28_12-00", "loss")) == ["tensorboard/loss"]
    assert named((".", "loss")) == ["tensorboard/loss"]
    assert named(("logs/train", "loss"), ("logs/validation", "loss")) == [
        "tensorboard/train/loss",
        "tensorboard/validation/loss",
    ]
    assert named(("runs/a", "loss"), ("runs/a/best/loss_0", "loss")) == [
        "tensorboard/loss",
        "tensorboard/best/loss_0/loss",
    ]
    # Two runs in one job; and two whose folders have one name.
    assert named(("a/x", "loss"), ("b/y", "loss"), ("c/y", "loss")) == [
        "tensorboard/loss",
        "tensorboard/y/loss",
        "tensorboard/c/y/loss",
    ]
