"""Writes the index of the results of a batch: the end of each item, and its result."""

import json
from pathlib import Path
from typing import Any

from gpuyard.domain.batches import ItemState


def write_index(row: dict[str, Any], items: list[dict[str, Any]]) -> None:
    """Write `index.json` into the folder of the results."""
    folder = Path(row["results"])
    folder.mkdir(parents=True, exist_ok=True)
    # The name of a result begins with the number of its item.
    results = {path.name.split("-")[0]: path.name for path in folder.glob("*-*.json")}
    entries = [_entry(item, results) for item in items]
    index = {"batch_id": row["id"], "script": row["script"], "items": entries}
    draft = folder / "index.json.new"
    draft.write_text(json.dumps(index, indent=1) + "\n")
    draft.rename(folder / "index.json")


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
