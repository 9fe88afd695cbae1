"""Workspaces: which one is meant, and what they hold."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.shape import Shape
from gpuyard.domain.validation import parse_model
from gpuyard.domain.workspaces import workspace_key, workspace_names
from gpuyard.storage.workspaces import listing

names = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"),
    min_size=1,
    max_size=50,
)


@given(names, names)
def test_a_key_is_one_folder_in_another_and_tells_both_names(
    project: str, name: str
) -> None:
    key = workspace_key(project, name)
    assert workspace_names(key) == (project, name)
    parts = PurePosixPath(key).parts
    assert len(parts) == 2
    assert not any(part.startswith(".") for part in parts)


def test_a_job_of_no_project_shares_with_others_of_none() -> None:
    spec = JobSpec(command=("true",), workspace="corpus")
    assert Shape.of(spec).workspace == "default/corpus"
    assert (
        Shape.of(spec.model_copy(update={"project": "speech"})).workspace
        == "speech/corpus"
    )
    assert Shape.of(JobSpec(command=("true",))).workspace == ""


@pytest.mark.parametrize(
    "work", [{"script": "transcribe"}, {"prompt": "hello", "model": "m"}]
)
def test_only_commands_have_one(work: dict[str, str]) -> None:
    with pytest.raises(
        InvalidInputError, match="workspace: does not belong in a job of kind"
    ):
        parse_model(JobSpec, {**work, "workspace": "corpus"})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"workspace": "語" * 100}, "workspace: is too long for the name of a folder"),
        (
            {"workspace": "corpus", "project": "語" * 100},
            "project: is too long for the name of a folder",
        ),
        (
            {"workspace": "corpus", "volumes": {"/workspace": "/data"}},
            "volumes: has '/workspace', where containers find",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    fields: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        parse_model(JobSpec, {"command": ["true"], **fields})
    parse_model(JobSpec, {"command": ["true"], "project": "語" * 100})


def test_what_they_hold_is_listed(tmp_path) -> None:
    assert listing(tmp_path / "none yet") == []
    (tmp_path / "default" / "corpus" / "deep").mkdir(parents=True)
    (tmp_path / "default" / "corpus" / "a").write_bytes(b"12345")
    (tmp_path / "default" / "corpus" / "deep" / "b").write_bytes(b"1")
    (tmp_path / "sp%2Fch" / "empty").mkdir(parents=True)
    corpus, empty = listing(tmp_path)
    assert (corpus.project, corpus.name, corpus.files, corpus.size) == (
        "default",
        "corpus",
        2,
        6,
    )
    assert corpus.changed_at
    assert (empty.project, empty.name, empty.files, empty.size, empty.changed_at) == (
        "sp/ch",
        "empty",
        0,
        0,
        None,
    )
