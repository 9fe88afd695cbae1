"""How far a training is, and its series, from what it prints: the rules that need more
than one line.
"""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.insight.curves import MAX_NAMES
from gpuyard.insight.progress import MetricPoint, ProgressReader, TrainingProgress

PIECES = [
    b"Epoch 1/2\n",
    b"\r 50%|###  | 3/6 [00:01<00:01,  2.00it/s, loss=0.5]",
    b"\rEpoch 0:  25%|#  | 1/4 [00:01<00:03, 1.00it/s, loss=0.25]",
    b"\n\r100%|#####| 2/2 [00:01<00:00,  2.00it/s]\x1b[A",
    b"{'loss': 1.5, 'epoch': 0.5}\n",
    b'GPUYARD_METRIC {"step": 3, "loss": 1e999, "acc": 0.5}\n',
    b"step 20: train loss 4.5, val loss 4.25\r\n",
    b"\b\b\r\x1b[1m1/2\x1b[0m \xe2\x94\x81 0s 13ms/step - loss: 0.5",
    (
        b"Epoch 0/1  \xe2\x94\x81 2/4 0:00:00 \xe2\x80\xa2 0:00:00 4.00it/s train_loss:"
        b" 0.5\n"
    ),
    b"step=7 loss=2 ",
    b"Using cpu device\n",
    b"  Epoch  GPU_mem  box_loss\n  1/3  0G  1.5: 50% \xe2\x94\x81 1/2 3.1it/s\n",
    b"E    #       LOSS TOK2VEC  LOSS NER\n3  0.5  0.2  0.1\n",
    b"|  loss  | 2.5 |\n| total_timesteps | 9 |\n----\n",
    b"[batch=2/10]:\n Train loss/train/total: 11.5\n",
    b" " * 24 + b"val_loss:\n" + b" " * 24 + b"0.75\n",
    b"MemoryError\n",
]


def bar(
    step: int,
    total: int,
    label: str = "",
    postfix: str = "",
    left: str = "?",
    rate: str = "?it/s",
) -> str:
    percent = f"{100 * step // total:3d}%|{'█' * (10 * step // total):10}|"
    return f"{label}{percent} {step}/{total} [00:01<{left}, {rate}{postfix}]"


def read(*lines: str, every_s: float = 0.0) -> tuple[list[MetricPoint], ProgressReader]:
    """All points of a log whose lines come `every_s` seconds, and its reader."""
    reader = ProgressReader()
    points: list[MetricPoint] = []
    for number, line in enumerate(lines):
        points += reader.feed(line.encode() + b"\n", number * every_s)
    return points + reader.finish(len(lines) * every_s), reader


def steps_of(points: list[MetricPoint], name: str) -> list[tuple[int | None, float]]:
    return [(point.step, point.value) for point in points if point.name == name]


def position(reader: ProgressReader) -> tuple[int | None, int | None]:
    return reader.progress.step, reader.progress.total


def test_nothing_is_known_at_first() -> None:
    points, reader = read("loading model", "ready in 3 s")
    assert points == []
    assert reader.progress == TrainingProgress()
    assert reader.fault is None


def test_points_come_when_their_line_has_ended() -> None:
    reader = ProgressReader()
    assert reader.feed(b"step 10: train loss 2.5, val ", 1.0) == []
    assert reader.feed(b"loss 2.75\nstep 20: train loss 2.0, val loss 2.25", 2.0) == [
        MetricPoint("train_loss", 0, 10, 2.5, 2.0),
        MetricPoint("val_loss", 0, 10, 2.75, 2.0),
    ]
    assert reader.finish(3.0) == [
        MetricPoint("train_loss", 1, 20, 2.0, 3.0),
        MetricPoint("val_loss", 1, 20, 2.25, 3.0),
    ]


# Bars


@pytest.mark.parametrize(
    "label",
    [
        "Evaluating: ",
        "Validation DataLoader 0: ",
        "Map (num_proc=4): ",
        "Downloading shards: ",
        "Epoch 1 [val]: ",
    ],
)
def test_a_bar_about_something_else_moves_nothing(label: str) -> None:
    points, reader = read(bar(3, 10), bar(40, 50, label, ", loss=9"))
    assert points == []
    assert position(reader) == (3, 10)


def test_a_bar_with_an_unknown_label_must_show_metrics() -> None:
    _, reader = read(bar(3, 10, "Warehouse: "))
    assert position(reader) == (None, None)
    _, reader = read(bar(3, 10, "ResNet50: ", ", loss=2.5"))
    assert position(reader) == (3, 10)


def test_metrics_in_the_label_count_and_do_not_make_it_another_bar() -> None:
    points, reader = read(
        bar(0, 10),
        bar(1, 10, "loss 2.5, val_loss 3.5: "),
        bar(2, 10, "loss 1e-05, val_loss 3: "),
    )
    assert steps_of(points, "loss") == [(1, 2.5), (2, 1e-05)]
    assert position(reader) == (2, 10)


def test_an_evaluation_after_the_training_bar_does_not_take_over() -> None:
    loss = "{'loss': 2.5, 'epoch': 0.5}"
    evaluated = "{'eval_loss': 2.0, 'epoch': 1.0}"
    points, reader = read(
        bar(3, 6), loss, bar(6, 6), bar(0, 100), bar(50, 100), evaluated, bar(51, 100)
    )
    assert position(reader) == (6, 6)
    assert steps_of(points, "loss") == [(3, 2.5)]
    assert steps_of(points, "eval_loss") == [(6, 2.0)]


def test_bars_with_no_metrics_do_not_take_turns() -> None:
    _, reader = read(bar(4, 4), bar(7, 7), "loss=2.5", bar(1, 4), bar(7, 7))
    assert position(reader) == (1, 4)


def test_the_bar_that_metrics_are_printed_under_takes_over_from_one_without() -> None:
    points, reader = read(
        bar(50, 50), bar(1, 6), "{'loss': 2.5, 'epoch': 0.2}", bar(2, 6)
    )
    assert position(reader) == (2, 6)
    assert steps_of(points, "loss")[0][1] == 2.5


def test_a_second_training_takes_over_from_a_finished_one() -> None:
    _, reader = read(bar(6, 6, postfix=", loss=1"), bar(1, 9, postfix=", loss=2"))
    assert position(reader) == (1, 9)
    _, reader = read(bar(6, 6, postfix=", loss=1"), "12it [00:05, 2.30it/s, loss=2]")
    assert position(reader) == (12, None)
    _, reader = read(bar(5, 6, postfix=", loss=1"), bar(1, 9, postfix=", acc=2"))
    assert position(reader) == (5, 6)


def test_the_loop_around_counts_epochs() -> None:
    lines = [bar(0, 3), bar(0, 4), bar(2, 4, postfix=", loss=2.5")]
    _, reader = read(*lines)
    assert position(reader) == (2, 12)
    _, reader = read(
        *lines,
        bar(4, 4, postfix=", loss=2"),
        bar(1, 3),
        bar(1, 4, postfix=", loss=1.5"),
    )
    assert position(reader) == (5, 12)
    assert (reader.progress.epoch, reader.progress.epochs) == (1.25, 3)


def test_a_bar_left_in_its_midst_is_no_loop_around_until_it_moves() -> None:
    lines = [bar(40, 50), bar(1, 4, postfix=", loss=2")]
    assert position(read(*lines)[1]) == (1, 4)
    assert position(read(*lines, bar(41, 50), bar(2, 4, postfix=", loss=1"))[1]) == (
        41 * 4 + 2,
        200,
    )


def test_a_redrawn_bar_gives_one_point_for_a_step() -> None:
    lines = [bar(1, 9, postfix=", loss=2.5")] * 3 + [
        bar(2, 9, postfix=", loss=2.25")
    ] * 2
    assert read(*lines)[0] == [
        MetricPoint("loss", 0, 1, 2.5, 0.0),
        MetricPoint("loss", 1, 2, 2.25, 0.0),
    ]


def test_a_value_left_over_from_the_step_before_is_no_point() -> None:
    points, _ = read(
        *(
            bar(step, 9, postfix=f", loss={loss}")
            for step, loss in [(1, 5), (2, 5), (2, 4), (3, 4), (3, 3)]
        )
    )
    assert steps_of(points, "loss") == [(1, 5.0), (2, 4.0), (3, 3.0)]


def test_a_value_that_stays_is_a_point_of_each_step() -> None:
    points, _ = read(
        *(bar(step, 9, postfix=", lr=0.5") for step in (1, 2, 2, 3)), every_s=1.0
    )
    assert points == [
        MetricPoint("lr", 0, 1, 0.5, 0.0),
        MetricPoint("lr", 1, 2, 0.5, 1.0),
        MetricPoint("lr", 2, 3, 0.5, 3.0),
    ]


# Epochs


@pytest.mark.parametrize(
    ("labels", "step", "total"),
    [
        (["Epoch 1 val loss 0.5: ", "Epoch 2 val loss 0.4: "], 6, None),
        (["Epoch 0: ", "Epoch 1: "], 6, None),
        (["Epoch 1: ", "Epoch 2: "], 6, None),
        (["Epoch 1/3: ", "Epoch 2/3: "], 6, 12),
        (["Epoch 0/3: ", "Epoch 1/3: "], 6, 12),
        (["Epoch 3/3: "], 10, 12),
        (["Epoch 3: "], 14, None),
    ],
)
def test_epochs_in_labels_are_counted_from_the_first_seen(
    labels: list[str], step: int, total: int | None
) -> None:
    _, reader = read(
        *(line for label in labels for line in (bar(0, 4, label), bar(2, 4, label)))
    )
    assert position(reader) == (step, total)


def test_bars_under_a_header_count_within_the_epoch_and_the_first_is_the_training() -> (
    None
):
    epoch = [bar(4, 4, postfix=", loss=2"), bar(7, 7, postfix=", acc=0.5")]
    points, reader = read("Epoch 1/3", *epoch, "Epoch 2/3", *epoch)
    assert position(reader) == (8, 12)
    assert steps_of(points, "loss") == [(4, 2.0), (8, 2.0)]
    assert steps_of(points, "acc") == []


def test_a_second_training_under_headers_of_its_own() -> None:
    _, reader = read(
        "Epoch 1/1",
        bar(4, 4, postfix=", loss=2"),
        "Epoch 1/1",
        bar(2, 3, postfix=", loss=2"),
    )
    assert position(reader) == (2, 3)


def test_an_epoch_cut_short_does_not_shift_the_next() -> None:
    _, reader = read(
        "Epoch 1/2", "3/4 - 0s - loss: 0.5", "Epoch 2/2", "1/4 - 0s - loss: 0.4"
    )
    assert position(reader) == (5, 8)


def test_lightning_counts_from_0_wherever_it_resumes() -> None:
    _, reader = read(
        "Epoch 1/1  ━━━━━ 2/4 0:00:00 • 0:00:00 4.00it/s train_loss: 0.035"
    )
    assert position(reader) == (6, 8)


def test_a_bar_that_goes_on_over_headers_counts_the_whole() -> None:
    _, reader = read(bar(0, 30), "Epoch 1/3", bar(5, 30), "Epoch 2/3", bar(15, 30))
    assert position(reader) == (15, 30)


def test_a_log_that_only_counts_epochs() -> None:
    points, reader = read(
        "Epoch 1/3", "loss: 2.5", "Epoch 2/3", "loss: 2.0", every_s=10.0
    )
    assert position(reader) == (1, 3)
    assert steps_of(points, "loss") == [(0, 2.5), (1, 2.0)]
    assert reader.progress.eta_s == 40.0
    points, reader = read("Epoch 1/3 - loss: 2.5", "Epoch 2/3 - loss: 2.0")
    assert position(reader) == (2, 3)
    assert steps_of(points, "loss") == [(1, 2.5), (2, 2.0)]


def test_steps_within_epochs_in_plain_lines() -> None:
    points, reader = read(
        "Epoch [1/3], Step [50/100], Loss: 2.5", "Epoch [2/3], Step [50/100], Loss: 2.0"
    )
    assert steps_of(points, "loss") == [(50, 2.5), (150, 2.0)]
    assert position(reader) == (150, 300)
    assert reader.progress.epoch == 1.5


def test_keras_may_learn_the_length_of_an_epoch_at_its_end() -> None:
    lines = [
        "Epoch 1/2",
        *(f"{step}/Unknown 0s 5ms/step - loss: 0.{step}" for step in (3, 4)),
    ]
    assert position(read(*lines)[1]) == (4, None)
    points, reader = read(
        *lines,
        "4/4 ━━━ 0s 5ms/step - loss: 0.4 - val_loss: 0.5",
        "Epoch 2/2",
        "1/4 ━ - loss: 0.2",
    )
    assert position(reader) == (5, 8)
    assert steps_of(points, "val_loss") == [(4, 0.5)]


# What is believed


def test_a_report_is_believed_above_all_else() -> None:
    report = (
        'GPUYARD_METRIC {"step": 30, "total": 100, "epoch": 2, "eta_s": 12, "loss":'
        " 2.5}"
    )
    points, reader = read(
        bar(3, 9), report, bar(5, 9, postfix=", acc=0.5"), "step=7 loss=2", "Epoch 1/9"
    )
    assert position(reader) == (30, 100)
    assert (reader.progress.epoch, reader.progress.eta_s) == (2.0, 12.0)
    assert steps_of(points, "acc") == [(30, 0.5)]
    assert steps_of(points, "loss") == [(30, 2.5), (7, 2.0)]


def test_one_value_told_in_two_forms_is_one_point() -> None:
    lines = [
        line
        for step in (1, 2)
        for line in (
            f"iter {step}: loss 2.2500, time 5ms",
            f'GPUYARD_METRIC {{"step": {step}, "loss": 2.25001}}',
        )
    ]
    points, reader = read(*lines)
    assert steps_of(points, "loss") == [(1, 2.25), (2, 2.25)]
    assert reader.progress.metrics == {"loss": 2.25001}


def test_lines_with_steps_are_believed_above_a_bar_about_nobody_knows_what() -> None:
    _, reader = read(bar(40, 50), "step=7 loss=2.5", bar(41, 50))
    assert position(reader) == (7, None)


def test_a_total_told_before_the_steps_holds() -> None:
    _, reader = read("max_iters = 40", "iter 10: loss 3, time 500.00ms")
    assert position(reader) == (10, 40)
    assert reader.progress.eta_s == 15.0
    _, reader = read('GPUYARD_METRIC {"total": 8}', 'GPUYARD_METRIC {"step": 2}')
    assert position(reader) == (2, 8)


def test_what_an_epoch_ends_with_stands_at_the_step_of_the_bar() -> None:
    points, reader = read(bar(30, 90, postfix=", loss=2"), "Epoch 3: val_loss=0.5")
    assert steps_of(points, "val_loss") == [(30, 0.5)]
    assert position(reader) == (30, 90)


def test_metrics_without_a_step_are_points_each_time() -> None:
    points, _ = read("loss=2.5", "loss=2.5", "loss=2.25")
    assert points == [
        MetricPoint("loss", n, None, value, 0.0)
        for n, value in enumerate([2.5, 2.5, 2.25])
    ]


def test_steps_that_go_back_are_taken_as_they_are() -> None:
    points, reader = read(
        *(f"step={step} loss={step}" for step in (1, 2, 3, 2, 3)), every_s=1.0
    )
    assert [point.step for point in points] == [1, 2, 3, 2, 3]
    assert [point.n for point in points] == [0, 1, 2, 3, 4]
    assert reader.progress.step == 3
    assert reader.progress.rate == 1.0


# Time


def test_the_remaining_time_is_measured_where_the_line_does_not_tell() -> None:
    _, reader = read(
        *(f'GPUYARD_METRIC {{"step": {step}, "total": 10}}' for step in range(5)),
        every_s=2.0,
    )
    assert reader.progress.rate == 0.5
    assert reader.progress.eta_s == 12.0


def test_the_pace_of_epochs_is_not_that_of_steps() -> None:
    _, reader = read("Epoch 1/2", bar(0, 100), bar(10, 100), every_s=1.0)
    assert reader.progress.rate == 10.0


def test_the_lines_own_remaining_time_comes_first() -> None:
    _, reader = read(
        *(bar(step, 10, left="01:00", rate="4.00it/s") for step in range(3)),
        every_s=1.0,
    )
    assert (reader.progress.rate, reader.progress.eta_s) == (4.0, 60.0)


def test_without_a_total_no_remaining_time_is_known() -> None:
    _, reader = read("step=1 loss=2", "step=2 loss=2", every_s=1.0)
    assert (reader.progress.rate, reader.progress.eta_s) == (1.0, None)


def test_past_the_total_nothing_remains() -> None:
    _, reader = read(
        *(f'GPUYARD_METRIC {{"step": {step}, "total": 2}}' for step in (1, 3)),
        every_s=1.0,
    )
    assert reader.progress.eta_s == 0.0


# Bad output


def test_values_that_are_not_finite_are_not_kept() -> None:
    points, reader = read(
        'GPUYARD_METRIC {"step": 1, "loss": NaN, "lr": Infinity, "acc": 0.5}'
    )
    assert points == [MetricPoint("acc", 0, 1, 0.5, 0.0)]
    assert reader.progress.metrics == {"acc": 0.5}


@pytest.mark.parametrize(
    "line",
    ["{'step': 1e30, 'loss': 2}", bar(10**14, 10**14, "Epoch 999: ", ", loss=2")],
)
def test_numbers_beyond_reason_are_not_read(line: str) -> None:
    points, reader = read(line)
    assert points == []
    assert position(reader) == (None, None)


def test_names_without_end_do_not_fill_memory() -> None:
    points, reader = read(
        *(f'GPUYARD_METRIC {{"m{n}": 1}}' for n in range(2 * MAX_NAMES))
    )
    assert len(points) == len(reader.progress.metrics) == MAX_NAMES
    assert reader.feed(b'GPUYARD_METRIC {"m0": 2}\n', 1.0) == [
        MetricPoint("m0", 1, None, 2.0, 1.0)
    ]


def test_the_last_fault_is_kept() -> None:
    _, reader = read(
        "MemoryError", "retrying", "torch.OutOfMemoryError: CUDA out of memory.", "bye"
    )
    assert reader.fault == "gpu_out_of_memory"


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.binary(max_size=4)).map(b"".join),
    st.lists(st.integers(0, 10**6), max_size=8),
)
def test_the_chunks_make_no_difference(output: bytes, places: list[int]) -> None:
    whole = ProgressReader()
    cut = ProgressReader()
    expected = [*whole.feed(output, 5.0), *whole.finish(5.0)]
    ends = [0, *sorted(place % (len(output) + 1) for place in places), len(output)]
    points = [
        point
        for start, end in pairwise(ends)
        for point in cut.feed(output[start:end], 5.0)
    ]
    assert points + cut.finish(5.0) == expected
    assert cut.progress == whole.progress
    assert cut.fault == whole.fault
    assert cut.no_gpu == whole.no_gpu
