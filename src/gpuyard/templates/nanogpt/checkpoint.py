"""Checkpoints: `ckpt-000100.pt` holds all that training needs to go on after step 100
as if it had never stopped.

A file with such a name is whole: it is written under another name, brought to the disk
and then renamed.
"""

import os
import pickle
import random
from pathlib import Path
from typing import Any

import torch

State = dict[str, Any]


def save(state: State, folder: Path, keep: int) -> Path:
    """Write `state` as the checkpoint of its `step` and delete all but the `keep`
    newest in `folder`.
    """
    path = folder / f"ckpt-{state['step']:06d}.pt"
    temporary = folder / f".{path.name}.tmp"
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    # A run that was killed while it wrote has left its temporary file.
    for old in [*_by_age(folder)[:-keep], *folder.glob(".ckpt-*.tmp")]:
        old.unlink(missing_ok=True)
    return path


def load(path: Path) -> State:
    """The state in `path`, or in the newest checkpoint of that folder, on the CPU;
    ValueError where there is none.
    """
    if path.is_dir():
        found = _by_age(path)
        if not found:
            raise ValueError(f"there is no checkpoint in {path}")
        path = found[-1]
    try:
        # Plain values and tensors only: a checkpoint from elsewhere must not be able to
        # run code.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(
            f"cannot read the checkpoint {path} ({error.strerror})"
        ) from error
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{path} is not a whole checkpoint") from error
    if not isinstance(state, dict) or "optimizer" not in state:
        raise ValueError(f"{path} is not a checkpoint of this program")
    return state


def _by_age(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first; by time, since a new run in an old
    folder starts again at step 0.
    """
    return sorted(
        folder.glob("ckpt-*.pt"), key=lambda path: (path.stat().st_mtime_ns, path.name)
    )


def random_state() -> State:
    """Where the global random number generators stand."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_random(state: State) -> None:
    """Put the generators back; those of GPUs only where there are as many as there
    were.
    """
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
