"""Reading single lines, each family's and those that are nobody's."""

import math
from typing import Any

import pytest

from gpuyard.insight.forms import (
    MAX_LENGTH,
    explicit,
    huggingface,
    keras,
    lightning,
    nanogpt,
    pairs,
    read,
    tqdm,
)
from gpuyard.insight.reading import Confidence, Reading, seconds


def said(reading: Reading | None) -> dict[str, Any]:
    """What a reading says, without what it leaves open."""
    assert reading is not None
    fields = {
        name: getattr(reading, name)
        for name in Reading.__slots__
        if name not in ("confidence", "within_epoch", "is_result")
    }
    return {
        name: value
        for name, value in fields.items()
        if value is not None and value != {}
    }


def test_explicit() -> None:
    line = (
        'GPUYARD_METRIC {"step": 10, "total": 100, "epoch": 1, "loss": 2.5, "lr": 1e-3,'
        ' "eta_s": 12}'
    )
    reading = explicit.read(line)
    assert said(reading) == {
        "step": 10,
        "total": 100,
        "epoch": 1,
        "eta_s": 12,
        "metrics": {"loss": 2.5, "lr": 1e-3},
    }
    assert said(
        explicit.read('INFO:root:GPUYARD_METRIC {"step": 3.0, "epochs": 2}')
    ) == {"step": 3, "epochs": 2}
    assert said(
        explicit.read(
            'GPUYARD_METRIC {"step": null, "loss": 1, "ok": true, "note": "x", "": 3}'
        )
    ) == {"metrics": {"loss": 1.0}}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "loss 2",
        "[1, 2]",
        '{"step": 1',
        '{"step": 1} loss=3',
        '{"step": "10", "loss": 2.5}',
        '{"step": -1, "loss": 2.5}',
        '{"step": 1.5, "loss": 2.5}',
        '{"step": true, "loss": 2.5}',
        '{"step": NaN, "loss": 2.5}',
        '{"eta_s": Infinity, "loss": 2.5}',
        '{"step": 1e300, "loss": 2.5}',
        '{"loss": 1' + "0" * 400 + "}",
        '{"loss": 1' + "0" * 4000 + "}",
        "[" * 4000,
    ],
)
def test_a_malformed_report_is_only_a_log_line(body: str) -> None:
    assert read(f"GPUYARD_METRIC {body}") == []


def test_nanogpt() -> None:
    step = nanogpt.read("step 20: train loss 4.5142, val loss 4.5194")
    assert said(step) == {
        "step": 20,
        "metrics": {"train_loss": 4.5142, "val_loss": 4.5194},
    }
    iteration = nanogpt.read("iter 10: loss 4.7847, time 50.00ms, mfu 0.02%")
    assert said(iteration) == {
        "step": 10,
        "rate": 20.0,
        "metrics": {"loss": 4.7847, "mfu": 0.02},
    }
    first = nanogpt.read("iter 0: loss 4.7847, time 0.00ms, mfu -100.00%")
    assert said(first) == {"step": 0, "metrics": {"loss": 4.7847}}
    assert said(nanogpt.read("Overriding: max_iters = 2000")) == {"total": 2000}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            (
                "{'loss': '5.532', 'grad_norm': '1.208', 'learning_rate': '4.167e-05',"
                " 'epoch': '0.125'}"
            ),
            {
                "epoch": 0.125,
                "metrics": {
                    "loss": 5.532,
                    "grad_norm": 1.208,
                    "learning_rate": 4.167e-05,
                },
            },
        ),
        (
            "{'loss': 5.532, 'grad_norm': nan, 'learning_rate': 4e-05, 'epoch': 0.12}",
            {"epoch": 0.12, "metrics": {"loss": 5.532, "learning_rate": 4e-05}},
        ),
        (
            (
                "{'eval_loss': '5.526', 'eval_runtime': '0.07',"
                " 'eval_samples_per_second': '337.1', 'epoch': '1'}"
            ),
            {"epoch": 1.0, "metrics": {"eval_loss": 5.526}},
        ),
        (
            "{'train_runtime': '0.3462', 'train_loss': '5.1', 'epoch': '1'}",
            {"epoch": 1.0},
        ),
        (
            '{"step": 7, "loss": 0.5, "msg": "ok"}',
            {"step": 7, "metrics": {"loss": 0.5}},
        ),
    ],
)
def test_huggingface(line: str, expected: dict[str, Any]) -> None:
    assert said(huggingface.read(line)) == expected


@pytest.mark.parametrize(
    "line",
    ["{'lr': 0.1, 'batch_size': 32}", "{}", "{'loss': 'mse', 'lr': 0.1}", "a {b} c"],
)
def test_other_dicts_are_only_log_lines(line: str) -> None:
    assert read(line) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "100%|██████████| 6/6 [00:01<00:00,  9.14it/s]",
            {"step": 6, "total": 6, "rate": 9.14, "eta_s": 0.0, "label": ""},
        ),
        ("  0%|          | 0/6 [00:00<?, ?it/s]", {"step": 0, "total": 6, "label": ""}),
        (
            (
                "Train:  33%|###3      | 1/3 [1:00:01<2:00:02, 4.00s/step, loss=0.03,"
                " acc=91.2%]"
            ),
            {
                "step": 1,
                "total": 3,
                "rate": 0.25,
                "eta_s": 7202.0,
                "label": "Train",
                "metrics": {"loss": 0.03, "acc": 91.2},
            },
        ),
        (
            "Epoch 0: 100%|███| 4/4 [00:00<00:00, 95.1it/s, v_num=0, train_loss=0.03]",
            {
                "step": 4,
                "total": 4,
                "epoch": 0.0,
                "rate": 95.1,
                "eta_s": 0.0,
                "label": "Epoch 0",
                "metrics": {"train_loss": 0.03},
            },
        ),
        (
            "Epoch 3/10 loss 0.25:  50%|█████     | 50/100 [00:10<00:10, 5.00it/s]",
            {
                "step": 50,
                "total": 100,
                "epoch": 3.0,
                "epochs": 10,
                "rate": 5.0,
                "eta_s": 10.0,
                "label": "Epoch 3/10 loss 0.25",
                "metrics": {"loss": 0.25},
            },
        ),
        (
            "Epoch 0: |          | 12/? [00:05<?, 2.30it/s, train loss: 0.5]",
            {
                "step": 12,
                "epoch": 0.0,
                "rate": 2.3,
                "label": "Epoch 0",
                "metrics": {"train_loss": 0.5},
            },
        ),
        ("37it [00:05,  6.65it/s]", {"step": 37, "rate": 6.65, "label": ""}),
        (
            "  0%|          | 3.00/2.00k [00:00<03:20, 1.50kit/s]",
            {"step": 3, "total": 2000, "rate": 1500.0, "eta_s": 200.0, "label": ""},
        ),
    ],
)
def test_tqdm(line: str, expected: dict[str, Any]) -> None:
    assert said(tqdm.read(line)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "Downloading: 100%|██████████| 20.5k/20.5k [00:00<00:00, 8.88MB/s]",
        "| a | 3/4 [x] | it/s",
        "100%|██████████| 6/6 [not a clock, 9.14it/s]",
        "see [1] for items/s and 100%|",
    ],
)
def test_what_tqdm_did_not_draw_or_counts_bytes(line: str) -> None:
    assert tqdm.read(line) is None


def test_a_print_glued_to_a_bar_is_read_too() -> None:
    bar, printed = read(
        " 50%|█████     | 3/6 [00:01<00:01,  2.00it/s]step 30: train loss 2.5, val loss"
        " 2.75"
    )
    assert (bar.step, bar.total, bar.label) == (3, 6, "")
    assert (printed.step, printed.metrics) == (
        30,
        {"train_loss": 2.5, "val_loss": 2.75},
    )


def test_lightning() -> None:
    bar = lightning.read(
        "Epoch 1/1  ━━━━━ 4/4 0:00:00 • 0:00:00 400.00it/s v_num: 0.000 train_loss:"
        " 0.035 acc: 1.000"
    )
    assert said(bar) == {
        "step": 4,
        "total": 4,
        "epoch": 1.0,
        "epochs": 2,
        "rate": 400.0,
        "eta_s": 0.0,
        "label": "Epoch 1/1",
        "first_epoch": 0,
        "metrics": {"train_loss": 0.035, "acc": 1.0},
    }
    unsized = lightning.read(
        "Epoch 0/-2 ╸ 3/-- 0:00:01 • -:--:-- 0.00it/s train_loss: 0.5"
    )
    assert said(unsized) == {
        "step": 3,
        "epoch": 0.0,
        "label": "Epoch 0/-2",
        "first_epoch": 0,
        "metrics": {"train_loss": 0.5},
    }
    # Without colours, rich draws what is left of the bar as blanks
    blank = lightning.read(
        "Validation                      0/4 0:00:00 • 0:00:01 3.00it/s"
    )
    assert said(blank)["label"] == "Validation"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "2/2 - 0s - 8ms/step - loss: 0.1353 - mae: 0.3185 - val_loss: 0.1070",
            {
                "step": 2,
                "total": 2,
                "rate": 125.0,
                "metrics": {"loss": 0.1353, "mae": 0.3185, "val_loss": 0.107},
            },
        ),
        (
            " 1/20 ━━━━━━━━━━━━━━━━━━━━ 1:05 2s/step - loss: -1.5000e-04",
            {"step": 1, "total": 20, "rate": 0.5, "metrics": {"loss": -0.00015}},
        ),
        (
            "      4/Unknown 0s 500us/step - loss: 0.5208",
            {"step": 4, "rate": 2000.0, "metrics": {"loss": 0.5208}},
        ),
        (
            (
                "10/100 [==>...........................] - ETA: 5s - loss: 0.3000 -"
                " acc: 0.9000"
            ),
            {"step": 10, "total": 100, "metrics": {"loss": 0.3, "acc": 0.9}},
        ),
    ],
)
def test_keras(line: str, expected: dict[str, Any]) -> None:
    assert said(keras.read(line)) == {**expected, "label": ""}


@pytest.mark.parametrize(
    "line", ["Epoch 2/5", "=== Epoch 2/5 ===", "Epoch [2/5]:", "EPOCH: 2 / 5"]
)
def test_a_header(line: str) -> None:
    reading = keras.read(line)
    assert said(reading) == {"epoch": 2.0, "epochs": 5}
    assert reading is not None
    assert reading.opens_epoch


def test_a_keras_bar_without_metrics_is_predict() -> None:
    assert read("1/1 ━━━━━━━━━━━━━━━━━━━━ 0s 20ms/step") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "step=100 loss=0.5 lr=1e-4",
            {"step": 100, "metrics": {"loss": 0.5, "lr": 1e-4}},
        ),
        ("step: 100, loss: 0.5", {"step": 100, "metrics": {"loss": 0.5}}),
        ("step: 5, lr: 0.1", {"step": 5, "metrics": {"lr": 0.1}}),
        ("INFO:root:step 100 loss 2.5", {"step": 100, "metrics": {"loss": 2.5}}),
        (
            "Epoch [3/10], Step [100/500], Loss: 0.1234",
            {
                "step": 100,
                "total": 500,
                "epoch": 3.0,
                "epochs": 10,
                "metrics": {"loss": 0.1234},
            },
        ),
        (
            "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.123",
            {"step": 640, "total": 60000, "epoch": 1.0, "metrics": {"loss": 2.123}},
        ),
        (
            "Epoch 3: train_loss=0.5 val loss=0.6 val_acc=91.2% lr=1e-3",
            {
                "step": 3,
                "epoch": 3.0,
                "metrics": {
                    "train_loss": 0.5,
                    "val_loss": 0.6,
                    "val_acc": 91.2,
                    "lr": 1e-3,
                },
            },
        ),
        (
            (
                " iteration       10/   500000 | learning rate: 1.0E-04 | lm loss:"
                " 8.9E+00 | grad norm: 0.5"
            ),
            {
                "step": 10,
                "total": 500000,
                "metrics": {"learning_rate": 1e-4, "lm_loss": 8.9, "grad_norm": 0.5},
            },
        ),
        (
            (
                "eta: 0:05:12  iter: 19  total_loss: 2.43  time: 0.55s  rank: 3  lr:"
                " 0.0004"
            ),
            {"step": 19, "metrics": {"total_loss": 2.43, "lr": 0.0004}},
        ),
        (
            "Test set: Average loss: 0.0583, Accuracy: 9809/10000 (98%)",
            {"metrics": {"test_average_loss": 0.0583, "test_accuracy": 98.0}},
        ),
    ],
)
def test_pairs(line: str, expected: dict[str, Any]) -> None:
    assert said(pairs.read(line)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "2024-01-01 12:00:00 INFO server listening on port 8080 pid=312",
        "Step 3/10 : RUN pip install foo=1.2",
        "access granted: id=5",
        "loss function: CrossEntropyLoss",
        "Namespace(lr=0.01, epochs=10, batch_size=32, loss_weight=0.5)",
        "epochs: 10",
        "loss: nan",
        "0% packet loss, time 3003ms",
        "number of parameters: 0.81M",
        "saving checkpoint to out-lc",
        "Epoch 3/10 done in 35s",
        "loss went down to 0.5",
        "  1/100 bottles - on: the wall",
        "http://localhost:8080/loss/3",
    ],
)
def test_ordinary_lines_are_nobodys(line: str) -> None:
    assert read(line) == []


def test_a_line_too_long_is_not_read() -> None:
    assert read("loss=0.5" + " " * (MAX_LENGTH - 8)) != []
    assert read("loss=0.5" + " " * (MAX_LENGTH - 7)) == []


def test_the_more_particular_form_is_believed() -> None:
    assert [
        reading.confidence for reading in read("step 1: train loss 4.5, val loss 4.5")
    ] == [Confidence.FORM]
    assert [reading.confidence for reading in read("step 1: train loss 4.5")] == [
        Confidence.GUESS
    ]
    assert [
        reading.confidence for reading in read('loss=3 GPUYARD_METRIC {"loss": 2}')
    ] == [Confidence.EXPLICIT]


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        ("12s", 12.0),
        ("04:05", 245.0),
        ("1:02:03", 3723.0),
        ("?", None),
        ("-:--:--", None),
    ],
)
def test_seconds(clock: str, expected: float | None) -> None:
    assert seconds(clock) == expected


def test_a_report_with_a_value_that_is_not_finite_keeps_the_rest() -> None:
    reading = explicit.read('GPUYARD_METRIC {"step": 1, "loss": NaN, "acc": 0.5}')
    assert reading is not None
    assert math.isnan(reading.metrics["loss"])
    assert (reading.step, reading.metrics["acc"]) == (1, 0.5)
