"""Training as a researcher sees it: the lines, the checkpoints, the signals, and going
on where it stopped.
"""

import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.programs import run_program

from .conftest import Run, Train

# The first test may have to wait for PyTorch to be installed.
pytestmark = pytest.mark.timeout(900)


def finish(run: Run) -> Run:
    """Wait for a run that must succeed."""
    assert run.wait() == 0, run.output
    return run


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("ckpt-*.pt"))


def read_checkpoints(python: str, *paths: Path) -> list[dict[str, object]]:
    """Of each checkpoint its step, its best validation loss and a hash over the bytes
    of model and optimiser.
    """
    program = """
import hashlib, io, json, sys, torch
for path in sys.argv[1:]:
    state = torch.load(path, weights_only=True)
    file = io.BytesIO()
    torch.save([state["model"], state["optimizer"], state["batches"], state["random"]], file)
    digest = hashlib.sha256(file.getvalue()).hexdigest()
    print(json.dumps({"step": state["step"], "best_val_loss": state["best_val_loss"], "digest": digest}))
"""
    command = [python, "-W", "ignore", "-c", program, *map(str, paths)]
    lines = run_program(command).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_loss_falls_and_the_lines_are_as_promised(train: Train, tmp_path: Path) -> None:
    run = finish(
        train(
            "--steps",
            "80",
            "--log-every",
            "10",
            "--eval-every",
            "40",
            "--save-every",
            "20",
        )
    )
    assert re.search(r"^number of parameters: 0\.80M$", run.output, re.M)
    assert re.search(
        r"^iter 10: loss \d\.\d{4}, time \d+\.\d\dms, lr 1\.0e-03$", run.output, re.M
    )
    evaluations = re.findall(
        r"^step (\d+): train loss (\d\.\d{4}), val loss (\d\.\d{4})$", run.output, re.M
    )
    assert [int(step) for step, _, _ in evaluations] == [0, 40, 80]
    assert float(evaluations[-1][2]) < float(evaluations[0][2]) - 0.5
    assert re.findall(r"^saving checkpoint to (.*)$", run.output, re.M) == [
        f"out/ckpt-0000{step}.pt" for step in (20, 40, 60, 80)
    ]
    assert re.search(
        r"^done: steps 80, final loss \d\.\d\d, checkpoint out/ckpt-000080\.pt$",
        run.output,
        re.M,
    )
    assert run.output.splitlines()[-1].strip(), "the sample"
    assert checkpoints(tmp_path / "out") == [
        "ckpt-000040.pt",
        "ckpt-000060.pt",
        "ckpt-000080.pt",
    ]
    metric = json.loads(re.findall(r"^GPUYARD_METRIC (.*)$", run.output, re.M)[-1])
    assert set(metric) == {"step", "total", "loss", "lr", "tokens_per_s"}
    assert (metric["step"], metric["total"]) == (80, 80)


def test_alone_it_prints_no_metrics(train: Train) -> None:
    run = finish(train("--steps", "2", GPUYARD_JOB_ID=""))
    assert "iter 2:" in run.output
    assert "GPUYARD_METRIC" not in run.output


def test_resumed_training_is_the_same_to_the_last_bit(
    train: Train, fast_torch_python: str, tmp_path: Path
) -> None:
    # Dropout draws from the global generator, evaluations fall before and after the
    # checkpoint.
    same = [
        "--steps",
        "20",
        "--save-every",
        "10",
        "--eval-every",
        "4",
        "--dropout",
        "0.2",
        "--accumulate",
        "2",
    ]
    whole = finish(train(*same, "--out", "whole"))
    half = finish(
        train(*same, "--out", "half", GPUYARD_RESUME_FROM="whole/ckpt-000010.pt")
    )
    assert list(half.losses) == list(range(11, 21))
    assert half.losses == {
        step: loss for step, loss in whole.losses.items() if step > 10
    }
    assert len(set(whole.losses.values())) == 20
    ends = read_checkpoints(
        fast_torch_python,
        *(tmp_path / out / "ckpt-000020.pt" for out in ("whole", "half")),
    )
    assert ends[0] == ends[1]


def test_resuming_what_is_done_does_nothing_more(train: Train, tmp_path: Path) -> None:
    finish(train("--steps", "3"))
    before = (tmp_path / "out" / "ckpt-000003.pt").stat().st_mtime_ns
    run = finish(train("--steps", "3", "--resume", "out"))
    assert "done: steps 3, final loss" in run.output
    assert run.losses == {}
    assert (tmp_path / "out" / "ckpt-000003.pt").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_stop_saves_and_the_run_goes_on_later(
    train: Train, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    run = train("--steps", "100000", "--save-every", "100000")
    run.wait_for("iter 3:")
    run.process.send_signal(number)
    assert run.wait() == code, run.output
    (name,) = checkpoints(tmp_path / "out")
    stopped_at = int(name.removeprefix("ckpt-").removesuffix(".pt"))
    assert stopped_at == max(run.losses)
    assert (
        run.output.splitlines()[-1]
        == f"stopped by {number.name} after step {stopped_at}"
    )
    resumed = finish(train("--steps", str(stopped_at + 2), "--resume", f"out/{name}"))
    assert list(resumed.losses) == [stopped_at + 1, stopped_at + 2]


def test_usr1_saves_and_training_goes_on(
    train: Train, fast_torch_python: str, tmp_path: Path
) -> None:
    run = train("--steps", "100000", "--save-every", "100000")
    for wanted in (1, 2):
        seen = run.output.count("iter ")
        run.wait_for("iter ", seen + 3)
        run.process.send_signal(signal.SIGUSR1)
        run.wait_for("saving checkpoint to", wanted)
    last = run.output.count("iter ")
    run.wait_for("iter ", last + 3)
    assert len(checkpoints(tmp_path / "out")) == 2
    states = read_checkpoints(
        fast_torch_python, *sorted((tmp_path / "out").glob("ckpt-*.pt"))
    )
    assert 3 <= states[0]["step"] < states[1]["step"]


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_only_whole_checkpoints(
    train: Train, fast_torch_python: str, tmp_path: Path
) -> None:
    chance = random.Random(20)
    for round_ in range(1, 6):
        resume = ["--resume", "out"] if checkpoints(tmp_path / "out") else []
        run = train("--steps", "100000", "--save-every", "1", *resume)
        run.wait_for("saving checkpoint to", round_)
        # Not a wait for anything: the moment is to fall anywhere in a step or in the
        # writing after it.
        time.sleep(chance.uniform(0, 0.1))
        run.kill()
        kept = sorted((tmp_path / "out").glob("ckpt-*.pt"))
        steps = [state["step"] for state in read_checkpoints(fast_torch_python, *kept)]
        assert [f"ckpt-{step:06d}.pt" for step in steps] == [path.name for path in kept]
        assert len(kept) <= 4, (
            "three to keep, and one that its deletion was killed before"
        )
    assert steps[-1] >= 1 + 2 + 3 + 4 + 5, "each round went on where the one before was"


def test_a_new_run_in_an_old_folder_keeps_its_own_checkpoints(
    train: Train, tmp_path: Path
) -> None:
    finish(train("--steps", "8", "--save-every", "4", "--keep", "2"))
    finish(train("--steps", "2", "--save-every", "1", "--keep", "2"))
    assert checkpoints(tmp_path / "out") == ["ckpt-000001.pt", "ckpt-000002.pt"]


def test_a_leftover_of_a_killed_run_is_cleared_away(
    train: Train, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".ckpt-000007.pt.tmp").write_text("half")
    finish(train("--steps", "1"))
    left = [path.name for path in (tmp_path / "out").glob("*ckpt*")]
    assert left == ["ckpt-000001.pt"]


IMPOSSIBLE = {
    "--resume absent.pt": (
        "cannot read the checkpoint absent.pt (No such file or directory)"
    ),
    "--resume .": "there is no checkpoint in .",
    "--resume empty.pt": "empty.pt is not a whole checkpoint",
    "--resume zip.pt": "zip.pt is not a whole checkpoint",
    "--resume noise.pt": "noise.pt is not a whole checkpoint",
    "--resume other.pt": "other.pt is not a checkpoint of this program",
    "--data absent.txt": (
        "absent.txt is neither shakespeare, nor stdlib, nor a readable file"
    ),
    "--data noise.pt": "noise.pt is not a UTF-8 text",
    "--data short.txt": "the text has 649 tokens; blocks of 64 need at least 650",
    "--out taken/out": "taken/out",
}


def test_what_cannot_be_done_is_told_in_one_line(
    fast_torch_python: str, nanogpt: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.pt").touch()
    (tmp_path / "zip.pt").write_bytes(b"PK\x03\x04 no checkpoint")
    (tmp_path / "noise.pt").write_bytes(random.Random(3).randbytes(5000))
    (tmp_path / "short.txt").write_text("x" * 649)
    (tmp_path / "taken").touch()
    # All in one process: most of a short run is the start of PyTorch.
    program = """
import sys, torch, train
torch.save({"weights": torch.zeros(2)}, "other.pt")
for arguments in sys.argv[1:]:
    sys.argv[1:] = ["--data", "stdlib", *arguments.split()]
    assert train.main() == 2
"""
    command = [fast_torch_python, "-W", "ignore", "-c", program, *IMPOSSIBLE]
    env = {**os.environ, "PYTHONPATH": str(nanogpt)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    errors = done.stderr.splitlines()
    for error, complaint in zip(errors, IMPOSSIBLE.values(), strict=True):
        assert error.startswith("train.py: error: ")
        assert complaint in error


def test_a_checkpoint_of_another_model_or_a_part_of_one_is_refused(
    train: Train, tmp_path: Path
) -> None:
    finish(train("--steps", "1"))
    path = tmp_path / "out" / "ckpt-000001.pt"
    other = train("--steps", "2", "--resume", str(path), "--block-size", "32")
    assert other.wait() == 2
    assert "another shape: block_size 16 there, 32 here" in other.output
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    part = train("--steps", "2", "--resume", str(path))
    assert part.wait() == 2
    assert "is not a whole checkpoint" in part.output


def test_another_text_is_noted_and_one_with_other_characters_refused(
    train: Train, tmp_path: Path
) -> None:
    finish(train("--steps", "1"))
    (tmp_path / "same.txt").write_text("six five four three two one " * 100)
    run = finish(train("--steps", "2", "--resume", "out", "--data", "same.txt"))
    assert "note: the checkpoint was trained on another text" in run.output
    (tmp_path / "other.txt").write_text("ZERO " * 400)
    refused = train("--steps", "3", "--resume", "out", "--data", "other.txt")
    assert refused.wait() == 2
    assert "has the character 'Z', which this tokenizer does not know" in refused.output


def test_diverging_training_stops_with_one_line(train: Train) -> None:
    run = train("--steps", "200", "--lr", "1e30", "--warmup", "0")
    assert run.wait() == 1
    assert re.search(
        r"^train\.py: error: the loss is \w+ at step \d+: try a lower --lr$",
        run.output,
        re.M,
    )


def test_byte_pairs_are_learned_and_resumed(train: Train) -> None:
    same = ["--tokenizer", "bpe", "--steps", "6", "--save-every", "3"]
    whole = finish(train(*same, "--out", "whole"))
    half = finish(train(*same, "--out", "half", "--resume", "whole/ckpt-000003.pt"))
    assert half.losses == {
        step: loss for step, loss in whole.losses.items() if step > 3
    }


def test_without_network_it_trains_on_shakespeare(train: Train) -> None:
    # A proxy that is not there, so that the test is the same with a network and
    # without.
    run = finish(
        train(
            "--steps",
            "1",
            "--data",
            "shakespeare",
            https_proxy="http://127.0.0.1:1",
            no_proxy="",
        )
    )
    assert "text: tiny Shakespeare, 1115394 characters" in run.output
