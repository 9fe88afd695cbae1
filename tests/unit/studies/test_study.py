"""study.toml: what it may say, and what is said of one that is wrong."""

import re
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from gpuyard.domain.errors import InvalidInputError, NotFoundError
from gpuyard.domain.validation import parse_model
from gpuyard.studies.study import (
    BaselineSection,
    GenerationSection,
    ReportSection,
    SlurmSection,
    StudyFile,
    load_study,
    short_name,
)
from tests.unit.studies.folders import make_study

SMALLEST: dict[str, Any] = {
    "model": {"name": "a/Llama-8B", "path": "m"},
    "strategies": [{"kind": "hybrid"}],
}


def parsed(**more: Any) -> StudyFile:
    return parse_model(StudyFile, SMALLEST | more)


def test_paths_stand_on_the_studys_folder(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    assert study.model.path == tmp_path / "model"
    assert study.prompts.folder == tmp_path / "data"
    assert study.directory == tmp_path
    assert study.model.short_name == "tiny8b"
    assert len(study.sha256) == 64


def test_the_home_of_nobody_is_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = make_study(tmp_path).directory / "study.toml"
    path.write_text(
        path.read_text().replace(
            'path = "model"', 'path = "~nobody-of-that-name/model"'
        )
    )
    assert (
        load_study(tmp_path).model.path == tmp_path / "~nobody-of-that-name" / "model"
    )
    with pytest.raises(NotFoundError):
        load_study(Path("~nobody-of-that-name/study"))


def test_what_is_left_out_has_a_value() -> None:
    study = parsed(prompts={"budgets": {"4k": 4000}})
    assert study.prompts.budgets == {"2k": 2048, "4k": 4000}
    assert study.baseline is None
    assert (study.generation.engine, study.slurm.launcher, study.slurm.time_limit) == (
        "torch",
        "srun",
        3600,
    )


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("02:30:00", 9000),
        ("1-00:00:00", 86400),
        ("2h", 7200),
        (90, 90),
        ("100:00:00", 360000),
    ],
)
def test_time_limits_are_seconds_inside(written: str | int, seconds: float) -> None:
    assert parsed(slurm={"time_limit": written}).slurm.time_limit == seconds


@pytest.mark.parametrize("key", ["apptainer_image", "appainter_image"])
def test_the_documents_spelling_of_apptainer_is_read_too(key: str) -> None:
    assert parsed(slurm={key: "vllm.sif"}).slurm.apptainer_image == "vllm.sif"


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ({"generation": {"batchsize": 4}}, "generation.batchsize", "batch_size"),
        ({"generation": {"precision": "int8"}}, "generation.precision", "fp32"),
        ({"generation": {"batch_size": 0}}, "generation.batch_size", "more than 0"),
        ({"prompts": {"budgets": {"8k": 1}}}, "prompts.budgets.8k", "2k"),
        ({"slurm": {"time_limit": "soon"}}, "slurm.time_limit", "HH:MM:SS"),
        ({"slurm": {"time_limit": "00:00:00"}}, "slurm.time_limit", "more than 0"),
        ({"slurm": {"sbatch": ["--x\nrm -rf /"]}}, "slurm.sbatch.0", "line break"),
        (
            {"slurm": {"environment": {"A B": "1"}}},
            "slurm.environment.A B",
            "environment variable",
        ),
        ({"slurm": {"gres": "gpu:4"}}, "slurm.gres", "gpus_per_node"),
        ({"slurm": {"gres": "gpu:a100:4"}}, "slurm.gres", "is no kind of GPU"),
        ({"slurm": {"gres": "gpu, shard"}}, "slurm.gres", "is no kind of GPU"),
        ({"strategies": []}, "strategies", "[[strategies]]"),
        ({"strategies": [{"kind": "magic"}]}, "strategies.0.kind", "hybrid"),
        (
            {"strategies": [{"kind": "hybrid", "tp": 0}]},
            "strategies.0.tp",
            "more than 0",
        ),
        *(
            (
                {"strategies": [{"kind": "hybrid", "name": name}]},
                "strategies.0.name",
                words,
            )
            for name, words in (
                ("x" * 101, "100"),
                ("a\x1b[31mred", "control character"),
                ("a\u202eback", "control character"),
            )
        ),
        ({"baseline": {"model": "m"}}, "baseline.base_url", "is missing"),
        (
            {"baseline": {"model": "m", "base_url": "localhost"}},
            "baseline.base_url",
            "https://",
        ),
        (
            {"baseline": {"model": "m", "base_url": "http://me:secret@h/v1"}},
            "baseline.base_url",
            "api_key_env",
        ),
        ({"directory": "/"}, "directory", "is not a field"),
    ],
)
def test_a_wrong_field_is_named_with_fault_and_remedy(
    more: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parsed(**more)
    (fault,) = caught.value.faults
    assert fault.field == field
    assert words in str(fault)
    assert "secret" not in str(fault)


def test_a_key_written_in_place_of_its_variable_is_not_repeated() -> None:
    with pytest.raises(InvalidInputError) as caught:
        parsed(
            baseline={
                "model": "m",
                "base_url": "http://h/v1",
                "api_key_env": "sk-12345",
            }
        )
    assert "12345" not in str(caught.value)
    with pytest.raises(InvalidInputError) as caught:
        parsed(
            baseline={"model": "m", "base_url": "http://h/v1", "api_key": "sk-12345"}
        )
    assert "12345" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b"a = ", "not TOML"),
        (b"", "model: is missing"),
    ],
)
def test_a_file_that_is_no_study(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "study.toml").write_bytes(content)
    with pytest.raises(InvalidInputError, match=words):
        load_study(tmp_path)


def test_a_folder_without_a_study(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="study init"):
        load_study(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama8b"),
        ("Qwen/Qwen2.5-0.5B", "qwen0.5b"),
        ("mistralai/Mistral-7B-v0.3", "mistral7b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama70b"),
        ("TinyModel", "tinymodel"),
        ("a/ü", "model"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


def test_sweeps_are_lists_or_single_values() -> None:
    (section,) = parsed(
        strategies=[{"kind": "hybrid", "batch_size": 8, "micro_batches": [1, 4, 4]}]
    ).strategies
    assert (section.batch_size, section.micro_batches) == ((8,), (1, 4))


def test_the_written_study_states_every_setting() -> None:
    """Each field of each table is in the file that `init` writes, perhaps as a
    comment.
    """
    import gpuyard.studies.scaffold as scaffold

    text = (Path(scaffold.__file__).parent / "template" / "study.toml").read_text()
    tomllib.loads(text)
    for section, model in (
        ("baseline", parsed(baseline={"model": "m", "base_url": "http://h"}).baseline),
        ("generation", parsed().generation),
        ("slurm", parsed().slurm),
        ("kubernetes", parsed(kubernetes={"image": "i"}).kubernetes),
        ("prompts", parsed().prompts),
        ("report", parsed().report),
    ):
        for name in type(model).model_fields:
            assert f"\n{name} = " in text or f"\n# {name} = " in text, (section, name)


def test_the_written_study_names_every_choice() -> None:
    """Where a field takes one of a few words, the comment above it in the file that
    `init` writes has just those.
    """
    import gpuyard.studies.scaffold as scaffold

    text = (Path(scaffold.__file__).parent / "template" / "study.toml").read_text()
    seen = 0
    for section in (BaselineSection, GenerationSection, SlurmSection, ReportSection):
        for name, field in section.model_fields.items():
            if get_origin(field.annotation) is Literal:
                comment = re.search(rf"^# (.*)\n{name} = ", text, re.MULTILINE)
                assert comment, name
                listed = re.sub(r".*: |\(.*?\)|\bor\b", "", comment[1])
                assert set(re.findall(r"\w+", listed)) == set(
                    get_args(field.annotation)
                ), comment[1]
                seen += 1
    assert seen == 7
