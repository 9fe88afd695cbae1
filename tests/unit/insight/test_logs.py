"""Whole logs, as the programs print them: the exact series and where each ends."""

from collections import defaultdict
from pathlib import Path

import pytest

from gpuyard.insight.progress import MetricPoint, ProgressReader, TrainingProgress

LOGS = Path(__file__).parents[2] / "data" / "logs"

Series = dict[str, list[tuple[int | None, float]]]

HUGGINGFACE: Series = {
    "loss": [(2, 5.2), (4, 4.75), (6, 4.31)],
    "grad_norm": [(2, 1.22), (4, 1.24), (6, 1.26)],
    "learning_rate": [(2, 4e-05), (4, 2e-05), (6, 0.0)],
    "eval_loss": [(3, 5.0), (6, 4.41)],
}
LIGHTNING_TRAIN = [(step, round(0.9 - step / 10, 1)) for step in range(1, 5)] + [
    (step, round(0.9 - step / 10, 1)) for step in range(5, 9)
]
# Lightning goes on showing the last validation's value through the next epoch
LIGHTNING: Series = {
    "train_loss": LIGHTNING_TRAIN,
    "val_loss": [(4, 0.6), (5, 0.6), (6, 0.6), (7, 0.6), (8, 0.4)],
}

EXPECTED: dict[str, tuple[Series, TrainingProgress]] = {
    "nanogpt": (
        {
            "train_loss": [(0, 4.2874), (20, 3.4142), (40, 2.9870)],
            "val_loss": [(0, 4.2823), (20, 3.4194), (40, 3.0041)],
            "loss": [
                (0, 4.2791),
                (10, 3.7847),
                (20, 3.3999),
                (30, 3.1012),
                (40, 2.9761),
            ],
            "mfu": [(10, 0.02), (20, 0.02), (30, 0.03), (40, 0.03)],
        },
        TrainingProgress(step=40, total=40, eta_s=0.0, rate=1 / 1.31052),
    ),
    "huggingface4": (
        HUGGINGFACE,
        TrainingProgress(step=6, total=6, epoch=1.0, eta_s=0.0, rate=17.33),
    ),
    "huggingface5": (
        HUGGINGFACE,
        TrainingProgress(step=6, total=6, epoch=1.0, eta_s=0.0, rate=17.33),
    ),
    "keras_bars": (
        {
            "loss": [(1, 0.9), (2, 0.7), (3, 0.5), (4, 0.135)],
            "mae": [(1, 0.39), (2, 0.38), (3, 0.29), (4, 0.28)],
            "val_loss": [(2, 0.6), (4, 0.1)],
        },
        TrainingProgress(
            step=4, total=4, epoch=2.0, epochs=2, eta_s=0.0, rate=1 / 0.013
        ),
    ),
    "keras_lines": (
        {
            "loss": [(2, 0.9), (4, 0.1353), (6, 8.1e-04)],
            "mae": [(2, 0.4), (4, 0.3185), (6, 0.0185)],
            "val_loss": [(2, 0.6), (4, 0.107), (6, 0.117)],
        },
        TrainingProgress(step=6, total=6, epoch=3.0, epochs=3, eta_s=0.0, rate=125.0),
    ),
    "lightning_rich": (
        LIGHTNING,
        TrainingProgress(step=8, total=8, epoch=2.0, epochs=2, eta_s=0.0, rate=1.0),
    ),
    # Its tqdm bar does not tell how many epochs there are
    "lightning_tqdm": (
        LIGHTNING,
        TrainingProgress(step=8, total=None, epoch=2.0, eta_s=None, rate=1.0),
    ),
    "tqdm_nested": (
        {
            "loss": [(1, 0.5), (2, 0.333), (3, 0.25), (4, 0.2), (5, 0.167), (6, 0.143)],
            "lr": [(step, 1e-3) for step in range(1, 7)],
            "val_acc": [(2, 50.5), (4, 60.5), (6, 70.5)],
        },
        TrainingProgress(step=6, total=6, epoch=3.0, epochs=3, eta_s=0.0, rate=0.4),
    ),
}


def replay(log: bytes, size: int) -> tuple[list[MetricPoint], TrainingProgress]:
    reader = ProgressReader()
    points = [
        point
        for start in range(0, len(log), size)
        for point in reader.feed(log[start : start + size], 1000.0)
    ]
    return points + reader.finish(1000.0), reader.progress


def series_of(points: list[MetricPoint]) -> Series:
    series: Series = defaultdict(list)
    for point in points:
        assert point.n == len(series[point.name])
        assert point.at == 1000.0
        series[point.name].append((point.step, point.value))
    return series


def test_every_log_has_its_series() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_exact_series(name: str) -> None:
    log = (LOGS / f"{name}.log").read_bytes()
    series, end = EXPECTED[name]
    points, progress = replay(log, len(log))
    assert series_of(points) == series
    end.metrics = progress.metrics
    assert progress == end
    assert set(progress.metrics) == set(series)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_chunks_make_no_difference(name: str, size: int) -> None:
    log = (LOGS / f"{name}.log").read_bytes()
    assert replay(log, size) == replay(log, len(log))
