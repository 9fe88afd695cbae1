"""Writes the index of the results of a batch: the end of each item, and its result."""

import json
from pathlib import Path
from typing import Any

from gpuyard.domain.batches import ItemState
from gpuyard.storage.untrusted import entries as folder_entries
from gpuyard.storage.untrusted import folder_beneath, write_beneath


def write_index(row: dict[str, Any], items: list[dict[str, Any]]) -> None:
    """Write `index.json` into the folder of the results."""
    # Scripts may write in the last folder of this path, and could replace it.
    folder = Path(row["results"])
    with folder_beneath(folder.parent, [folder.name], make=0o777) as opened:
        names = [entry.name for entry in folder_entries(opened) if entry.is_file]
    # The name of a result begins with the number of its item.
    results = {
        name.split("-")[0]: name
        for name in names
        if "-" in name and name.endswith(".json")
    }
    entries = [_entry(item, results) for item in items]
    index = {"batch_id": row["id"], "script": row["script"], "items": entries}
    content = json.dumps(index, indent=1).encode() + b"\n"
    write_beneath(folder.parent, f"{folder.name}/index.json", content, 0o666)


def _entry(item: dict[str, Any], results: dict[str, str]) -> dict[str, Any]:
    result = None
    if item["state"] == ItemState.COMPLETED:
        result = results.get(f"{item['number']:05}")
    duration = None
    if item["started_at"]:
        duration = round(item["ended_at"] - item["started_at"], 3)
    return {
        "number": item["number"],
        "path": item["path"],
        "entry": item["entry"],
        "state": item["state"],
        "result": result,
        "duration": duration,
        "reason": item["reason"],
    }
