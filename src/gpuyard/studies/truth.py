"""Read the right answers: JSON lines `{"prompt_id", "variant", "text"}`."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from gpuyard.domain.errors import Fault, InvalidInputError, quoted
from gpuyard.studies.prompts import PromptRecord, read_text

_FIELD = "prompts.truth"
_KEYS = ("prompt_id", "variant", "text")


def load_truth(
    path: Path, records: Iterable[PromptRecord]
) -> dict[tuple[str, str], str]:
    """Return the right text by (prompt_id, variant); prompts may lack one.

    InvalidInputError for a line that is not such an object, or that names an unknown
    prompt or one named before.
    """
    known = {(record.prompt_id, record.variant) for record in records}
    truth: dict[tuple[str, str], str] = {}
    faults: list[Fault] = []
    for number, line in enumerate(read_text(path, _FIELD).split("\n"), 1):
        if not line.strip():
            continue
        fault = _fault(line, known, truth)
        if fault:
            faults.append(Fault(_FIELD, f"{path} line {number} {fault[0]}", fault[1]))
        else:
            row = json.loads(line)
            truth[row["prompt_id"], row["variant"]] = row["text"]
    if faults:
        raise InvalidInputError(faults)
    return truth


def _fault(
    line: str, known: set[tuple[str, str]], truth: dict[tuple[str, str], str]
) -> tuple[str, str] | None:
    """What is wrong with a line and what would be right, if anything is wrong."""
    try:
        row: Any = json.loads(line)
    except ValueError:
        return "is no JSON", 'write {"prompt_id": "p01", "variant": "2k", "text": "…"}'
    wrong = _wrong_keys(row)
    if wrong:
        return (
            f"lacks {', '.join(wrong)}",
            'write {"prompt_id": "p01", "variant": "2k", "text": "…"}',
        )
    key = (row["prompt_id"], row["variant"])
    if key not in known:
        return (
            f"is of {quoted(key[0])} of {quoted(key[1])}, which is no prompt",
            "use ids and variants of the files",
        )
    return (
        (f"is a second one of {key[0]} of {key[1]}", "keep one")
        if key in truth
        else None
    )


def _wrong_keys(row: object) -> list[str]:
    if not isinstance(row, dict):
        return list(_KEYS)
    fields = cast(dict[str, object], row)
    return [key for key in _KEYS if not isinstance(fields.get(key), str)]
