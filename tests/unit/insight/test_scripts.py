"""Lines of scripts that print as it came to their authors' minds: tutorials, examples,
reinforcement learning, tuning and pipelines.
"""

import pytest

from gpuyard.insight.progress import MetricPoint, ProgressReader

Point = tuple[str, int | None, float]


def read(*lines: str) -> tuple[list[Point], ProgressReader]:
    reader = ProgressReader()
    output = "".join(f"{line}\n" for line in lines).encode()
    points: list[MetricPoint] = reader.feed(output, 0.0) + reader.finish(0.0)
    return [(point.name, point.step, point.value) for point in points], reader


@pytest.mark.parametrize(
    ("line", "points"),
    [
        (
            "| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 41.0 | ppl  90.5",
            [("lr", 200, 20.0), ("ppl", 200, 90.5)],
        ),
        ("===> Epoch[1](30/50): Loss: 0.25", [("loss", 30, 0.25)]),
        ("[1,  2000] loss: 2.125", [("loss", 2000, 2.125)]),
        (
            "Train: 0 [  50/62 ( 82%)]  Loss: 2.32 (2.38)  LR: 1.000e-05",
            [("loss", 50, 2.32), ("lr", 50, 1e-5)],
        ),
        (
            "Episode 20\tLast reward: 36.00\tAverage reward: 19.50",
            [("last_reward", 20, 36.0), ("average_reward", 20, 19.5)],
        ),
        ("Episode: 12, Return: 7.0", [("return", 12, 7.0)]),
        ("global_step=126, episodic_return=[22.]", [("episodic_return", 126, 22.0)]),
        ("epoch: 1 step: 100, loss is 2.5", [("loss", 100, 2.5)]),
        (
            "Test set: Average loss: 0.05, Accuracy: 9833/10000 (98%)",
            [("test_average_loss", None, 0.05), ("test_accuracy", None, 98.0)],
        ),
        (
            "val Loss: 0.25 Acc: 0.75",
            [("val_loss", None, 0.25), ("val_acc", None, 0.75)],
        ),
        ("Test set accuracy 0.875", [("test_set_accuracy", None, 0.875)]),
        (
            "Progress: 50.4% words/s:  812 lr:  0.05 avg.loss:  1.25 ETA:   0h 0m 9s",
            [("words/s", None, 812), ("lr", None, 0.05), ("avg.loss", None, 1.25)],
        ),
        ("===> Epoch 1 Complete: Avg. Loss: 0.125", [("avg_loss", 1, 0.125)]),
    ],
)
def test_what_a_line_shows(line: str, points: list[Point]) -> None:
    assert read(line)[0] == points


@pytest.mark.parametrize(
    "line",
    [
        "Step 3: install the package",
        "In this episode 5 of them were lost: 3",
        "round 2 of talks ended",
        "train.py: 93 epochs to go",
        "Trial 1 pruned.",
        "test loss 2.30 is the best so far, saving model to out/model.pt",
        "3 of 7 steps are done",
        "Test: [docs] passed",
    ],
)
def test_prose_shows_nothing(line: str) -> None:
    points, reader = read(line)
    assert (points, reader.progress.step) == ([], None)


def test_a_counter_alone_is_that_of_the_lines_that_follow() -> None:
    points, _ = read(
        "STEP:  0", "loss: 0.5", "test loss: 0.75", "STEP:  1", "loss: 0.25"
    )
    assert points == [("loss", 0, 0.5), ("test_loss", 0, 0.75), ("loss", 1, 0.25)]
    points, reader = read(
        "Epoch 0 in 3.22 sec", "Test set accuracy 0.5", "Epoch 1 in 1.5 sec"
    )
    assert points == [("test_set_accuracy", 0, 0.5)]
    assert reader.progress.step == 1


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        (
            ["[1,  2000] loss: 3", "[1,  4000] loss: 2", "[2,  2000] loss: 1"],
            [2000, 4000, 6000],
        ),
        (  # counted from 0
            [
                "Epoch 1 | Iter 0 | Loss 3",
                "Epoch 1 | Iter 9 | Loss 2",
                "Epoch 2 | Iter 0 | Loss 1",
            ],
            [0, 9, 10],
        ),
        (  # the epoch is only in a header
            [
                "Epoch 1",
                "-----",
                "loss: 3 [   64/60000]",
                "loss: 2 [ 6464/60000]",
                "Epoch 2",
                "-----",
                "loss: 1 [   64/60000]",
            ],
            [64, 6464, 60064],
        ),
        (  # never begins anew
            [
                "Epoch 1, step 10, loss: 3",
                "Epoch 2, step 20, loss: 2",
                "Epoch 3, step 30, loss: 1",
            ],
            [10, 20, 30],
        ),
    ],
)
def test_steps_that_begin_anew_in_each_epoch_are_counted_on(
    lines: list[str], steps: list[int]
) -> None:
    points, reader = read(*lines)
    assert points == [("loss", step, 3.0 - number) for number, step in enumerate(steps)]
    progress = reader.progress
    assert progress.total is None or progress.total >= steps[-1]


def test_an_evaluation_does_not_take_the_position_back() -> None:
    points, reader = read(
        "Epoch 1 | Iter 90 | Loss 2", "Epoch 1 | Iter 0 | Eval Loss 3"
    )
    assert points == [("loss", 90, 2.0), ("eval_loss", 90, 3.0)]
    assert reader.progress.step == 90


def test_an_evaluation_shows_its_result_once_and_not_its_batches() -> None:
    points, reader = read(
        "Epoch: [0][ 11/100]\tLoss 6.5 (7.0)\tAcc@1   1.00 (  0.08)",
        "Test: [ 1/20]\tTime  0.3 ( 0.4)\tLoss 6.5 (7.25)\tAcc@1   1.00 (  0.50)",
        "Test: [19/20]\tTime  0.3 ( 0.4)\tLoss 6.5 (7.50)\tAcc@1   1.00 (  0.75)",
        "Test: [20/20]\tTime  0.3 ( 0.4)\tLoss 6.5 (7.75)\tAcc@1   1.00 (  2.50)",
        " *   Acc@1 2.500 Acc@5 9.250",
    )
    assert points == [
        ("loss", 11, 6.5),
        ("acc@1", 11, 1.0),
        ("test_loss", 11, 7.75),
        ("test_acc@1", 11, 2.5),
        ("test_acc@5", 11, 9.25),
    ]
    assert reader.progress.step == 11


def test_tuning_and_pipelines_say_how_far_they_are() -> None:
    trial = (
        "[I 2026-11-26 10:00:01,123] Trial {} finished with {} and parameters: {{}}."
    )
    points, _ = read(
        trial.format(0, "value: 0.5") + " Best is trial 0 with value: 0.5.",
        trial.format(1, "values: [0.25, 12.0]"),
    )
    assert points == [
        ("value", 0, 0.5),
        ("best_value", 0, 0.5),
        ("value_0", 1, 0.25),
        ("value_1", 1, 12.0),
    ]
    _, reader = read("[2026-11-26 17:57:59,381][HYDRA] \t#5 : x=-2.0 y=-5")
    assert reader.progress.step == 5
    _, reader = read("2 of 7 steps (29%) done")
    assert (reader.progress.step, reader.progress.total) == (2, 7)
    _, reader = read(
        "Executing:  17%|█▋   | 1/6 [00:01<00:06,  1.31s/cell]",
        "Executing Fit:  33%|██▋  | 2/6 [00:02<00:05,  1.31s/cell]",
    )
    assert (reader.progress.step, reader.progress.total) == (2, 6)
