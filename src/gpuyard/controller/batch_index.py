"""The index of a batch's results: one file that says what became of each item, and where that is."""

import json
from pathlib import Path
from typing import Any

from gpuyard.domain.batches import ItemState


def write_index(row: dict[str, Any], items: list[dict[str, Any]]) -> None:
    """`index.json` in the folder of the results: what became of each item, and where that is."""
    folder = Path(row["results"])
    folder.mkdir(parents=True, exist_ok=True)
    kept = {path.name.split("-")[0]: path.name for path in folder.glob("*-*.json")}
    listed = [
        {
            "number": item["number"], "path": item["path"], "entry": item["entry"], "state": item["state"],
            "result": kept.get(f"{item['number']:05}") if item["state"] == ItemState.COMPLETED else None,
            "duration": round(item["ended_at"] - item["started_at"], 3) if item["started_at"] else None,
            "reason": item["reason"],
        }
        for item in items
    ]  # fmt: skip
    draft = folder / "index.json.new"
    draft.write_text(json.dumps({"batch_id": row["id"], "script": row["script"], "items": listed}, indent=1) + "\n")
    draft.rename(folder / "index.json")
