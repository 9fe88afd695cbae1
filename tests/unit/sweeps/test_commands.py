"""The values of parameters in the words of a program."""

from gpuyard.sweeps.commands import with_values


def test_a_parameter_is_added_as_an_option() -> None:
    job = {"command": ["python3", "train.py", "--epochs", "3"]}
    filled = with_values(job, {"lr": "0.1", "depth": "2"}, {})
    assert filled["command"] == [*job["command"], "--lr", "0.1", "--depth", "2"]
    assert job["command"][-1] == "3", "the job itself stays as it is"


def test_where_its_name_stands_in_braces_it_is_filled_in() -> None:
    job = {
        "command": ["train", "optim.lr={lr}", "out/{trial}", "${lr} {other}"],
        "environment": {"RATE": "{lr}"},
        "checkpoint": {"path": "out/{trial}/*.pt", "grace_s": 3},
    }
    filled = with_values(job, {"lr": "0.1", "n": "2"}, {"trial": "7", "seed": "1"})
    assert filled["command"] == [
        "train",
        "optim.lr=0.1",
        "out/7",
        "${lr} {other}",
        "--n",
        "2",
    ]
    assert filled["environment"] == {"RATE": "0.1"}
    assert filled["checkpoint"] == {"path": "out/7/*.pt", "grace_s": 3}
