"""What `study init` writes can be run, but for the model, and is the same
everywhere.
"""

import hashlib
from pathlib import Path

import pytest

from gpuyard.domain.errors import RefusedError
from gpuyard.studies.prompts import PromptFileSet, PromptRepository
from gpuyard.studies.scaffold import CHARACTERS_PER_TOKEN, init, prompts
from gpuyard.studies.strategies import strategies_of
from gpuyard.studies.study import load_study
from gpuyard.studies.validation import validate_study


def test_only_the_model_is_missing(tmp_path: Path) -> None:
    init(tmp_path / "study")
    found = validate_study(load_study(tmp_path / "study"))
    assert [fault.field for fault in found.faults] == ["model.path"]
    assert found.prompts == 40 and not found.warnings


def test_it_holds_the_documents_four(tmp_path: Path) -> None:
    init(tmp_path)
    study = load_study(tmp_path)
    assert [
        one.strategy_id(study.model.short_name) for one in strategies_of(study)
    ] == [
        "llama8b_pp1_tp8_n8",
        "llama8b_pp8_tp1",
        "llama8b_pp1_tp8",
        "llama8b_pp2_tp4",
    ]


def test_prompts_differ_and_are_about_as_long_as_their_budget(tmp_path: Path) -> None:
    init(tmp_path)
    records = PromptRepository(PromptFileSet(tmp_path / "data")).load_all()
    assert len({record.prompt for record in records}) == 40
    for record in records:
        assert len(record.prompt) / CHARACTERS_PER_TOKEN == pytest.approx(
            record.token_budget, rel=0.05
        )


def test_prompts_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256("\n".join(prompts(2048)).encode()).hexdigest()
    assert digest[:16] == "f6dcc2427e1f4d11"


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(RefusedError, match=r"README\.md"):
        init(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    init(tmp_path / "a")
    with pytest.raises(RefusedError, match="holds a study already"):
        init(tmp_path / "a")
