"""Writes the index of the results of a batch: the end of each item, and its result."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuyard.config.accounts import Account
from gpuyard.resource_manager.index_file import write_index_file

_PROGRAM = "gpuyard.resource_manager.index_file"
# A folder on a disk that hangs must not hold up the end of a batch for ever.
_LONGEST_S = 60.0


def write_index(
    row: dict[str, Any],
    items: list[dict[str, Any]],
    account: Account | None = None,
    umask: int = 0o077,
) -> None:
    """Write `index.json` into the folder of the results; OSError.

    With an `account`, that writes it, with this `umask`: whoever submitted the batch
    has named the folder, and root could write into any.
    """
    folder = Path(row["results"])
    index = {
        "batch_id": row["id"],
        "script": row["script"],
        "items": [_entry(item) for item in items],
    }
    if account:
        _write_as(account, umask, folder, index)
    else:
        write_index_file(folder, index)


def _entry(item: dict[str, Any]) -> dict[str, Any]:
    """What the index says of an item; who finds its result fills that in."""
    duration = None
    if item["started_at"]:
        duration = round(item["ended_at"] - item["started_at"], 3)
    return {
        "number": item["number"],
        "path": item["path"],
        "entry": item["entry"],
        "state": item["state"],
        "result": None,
        "duration": duration,
        "reason": item["reason"],
    }


def _write_as(
    account: Account, umask: int, folder: Path, index: dict[str, Any]
) -> None:
    order = {
        "account": asdict(account),
        "umask": umask,
        "folder": str(folder),
        "index": index,
    }
    # Not with `user`: between that and the program, its other processes could stop it
    # for ever, and later look into it.
    try:
        subprocess.run(
            [sys.executable, "-I", "-m", _PROGRAM],
            input=json.dumps(order),
            text=True,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_LONGEST_S,
            cwd="/",
            env={},
            start_new_session=True,
        )
    except subprocess.CalledProcessError as error:
        raise OSError(f"{account.name}: {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"{account.name}: it took too long") from None
