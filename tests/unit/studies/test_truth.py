"""Right answers: read by prompt and variant, and refused when they are of no prompt."""

import json
from pathlib import Path

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies.prompts import PromptFileSet, PromptRepository
from gpuyard.studies.truth import load_truth
from tests.unit.studies.folders import write_prompts

GOOD = {"prompt_id": "p01", "variant": "2k", "text": "Forty\ntwo"}


def load(folder: Path, *lines: str) -> dict[tuple[str, str], str]:
    write_prompts(folder)
    (folder / "truth.jsonl").write_text("\n".join(lines) + "\n")
    return load_truth(
        folder / "truth.jsonl", PromptRepository(PromptFileSet(folder)).load_all()
    )


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="embedded null byte"):
        load_truth(tmp_path / "a\0b", [])


def test_texts_by_prompt_and_variant(tmp_path: Path) -> None:
    other = {**GOOD, "variant": "4k", "text": "\u2028 is no end of a line"}
    lines = (json.dumps(GOOD), "", json.dumps(other, ensure_ascii=False))
    assert load(tmp_path, *lines) == {
        ("p01", "2k"): "Forty\ntwo",
        ("p01", "4k"): other["text"],
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is no JSON"),
        ("[]", "line 2 lacks prompt_id, variant, text"),
        (json.dumps({**GOOD, "text": None}), "line 2 lacks text"),
        (json.dumps({**GOOD, "prompt_id": "p21"}), "'p21' of '2k', which is no prompt"),
        (json.dumps({**GOOD, "variant": "8k"}), "'8k', which is no prompt"),
        (json.dumps(GOOD), "line 2 is a second one of p01 of 2k"),
    ],
)
def test_a_line_that_is_wrong(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load(tmp_path, json.dumps(GOOD), line)
    (fault,) = caught.value.faults
    assert fault.field == "prompts.truth" and fault.remedy
    assert words in fault.fault
