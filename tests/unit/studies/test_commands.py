"""`gpuyard study …`, and what the command knows of plugins before one is called."""

import json
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuyard.cli import plugins
from gpuyard.cli.main import app
from gpuyard.domain.errors import GpuyardError, InvalidInputError
from tests.support.programs import run_program
from tests.unit.studies.folders import NO_SERVER, make_study

HEAVY = {
    "pandas",
    "pyarrow",
    "openai",
    "numpy",
    "tokenizers",
    "pydantic",
    "gpuyard.studies.commands",
}
HELP = """
import sys
from gpuyard.cli.entry import main
sys.argv = ["gpuyard", "--help"]
try:
    main()
finally:
    print("IMPORTED", *sys.modules)
"""


def study(*words: str | Path) -> Any:
    return CliRunner(env=NO_SERVER).invoke(app, ["study", *map(str, words)])


def test_help_names_the_wing_and_imports_none_of_it() -> None:
    done = run_program([sys.executable, "-c", HELP], timeout=60)
    text, _, modules = done.stdout.rpartition("IMPORTED")
    assert re.search("study +Compare ways of splitting", text)
    assert not HEAVY & set(modules.split())


def test_importing_studies_is_cheap() -> None:
    code = "import sys, gpuyard.studies, gpuyard.studies.commands; print(*sys.modules)"
    done = run_program([sys.executable, "-c", code], timeout=60)
    assert not (HEAVY - {"gpuyard.studies.commands"}) & set(done.stdout.split())


def test_a_wing_that_cannot_be_imported_says_so_when_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = EntryPoint("ghost", "no.such.module:plugin", plugins.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [broken])
    plugins._plugins.cache_clear()
    try:
        listing = CliRunner().invoke(app, ["--help"])
        called = CliRunner().invoke(app, ["ghost"])
    finally:
        plugins._plugins.cache_clear()
    assert listing.exit_code == 0
    assert re.search(r"ghost +\(cannot be loaded\)", listing.output)
    assert isinstance(called.exception, GpuyardError)
    assert "No module named 'no'" in str(called.exception)


def test_a_word_that_is_no_command() -> None:
    assert study("nothing").exit_code == 2
    assert CliRunner().invoke(app, ["studies"]).exit_code == 2


def test_a_fresh_study_wants_only_its_model(tmp_path: Path) -> None:
    assert study("init", tmp_path / "s").exit_code == 0
    done = study("validate", tmp_path / "s")
    assert done.exit_code == 2
    assert "wrong    model.path: there is no folder" in done.output
    assert "fine     40 prompts" in done.output
    document = json.loads(study("validate", tmp_path / "s", "--json").stdout)
    assert document["ok"] is False and document["prompts"] == 40
    assert [fault["field"] for fault in document["faults"]] == ["model.path"]


def test_a_study_that_can_run(tmp_path: Path) -> None:
    make_study(tmp_path)
    done = study("validate", tmp_path)
    assert done.exit_code == 0, done.output
    assert "The study can run." in done.output
    assert json.loads(study("validate", tmp_path, "--json").stdout)["faults"] == []


@pytest.mark.parametrize("name", ["back\\slash", "two\nlines"])
def test_a_folder_that_slurm_cannot_be_told(tmp_path: Path, name: str) -> None:
    make_study(tmp_path / name)
    done = study("validate", tmp_path / name)
    assert done.exit_code == 2
    assert "study: its folder" in done.output and "rename it" in done.output


def test_another_model_as_baseline_is_a_warning(tmp_path: Path) -> None:
    settings = '[baseline]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "{}"\n'
    make_study(tmp_path, settings.format("big/Llama-70B"))
    said = study("validate", tmp_path)
    assert said.exit_code == 0 and "scores then compare models" in said.output
    make_study(tmp_path, settings.format("other/tiny-8b"))
    assert "compare models" not in study("validate", tmp_path).output


def test_a_file_that_is_wrong_is_one_document_too(tmp_path: Path) -> None:
    make_study(tmp_path)
    (tmp_path / "study.toml").write_text("[modell]\n")
    done = study("validate", tmp_path, "--json")
    assert done.exit_code == 2
    fields = [fault["field"] for fault in json.loads(done.stdout)["faults"]]
    assert fields == ["model", "strategies", "modell"]


def test_the_plan_as_a_table_and_as_a_document(tmp_path: Path) -> None:
    make_study(tmp_path, "[slurm]\ngpu_memory_gb = 1\n")
    lines = study("plan", tmp_path).stdout.splitlines()
    assert lines[0].split()[:6] == ["STRATEGY", "PROMPTS", "NODES", "GPUS", "TP", "PP"]
    assert len(lines) == 1 + 8 + 4
    assert "a GPU has 1" in lines[-1]
    items = json.loads(study("plan", tmp_path, "--json").stdout)["items"]
    assert len(items) == 8 and {item["fits"] for item in items} == {False}
    assert items[0]["world_size"] == 4 and items[0]["document_gib"] > 8


def test_a_run_that_has_submitted_nothing_yet_has_a_status(tmp_path: Path) -> None:
    run = make_study(tmp_path).runs / "run_20261123T091500"
    run.mkdir(parents=True)
    head = {
        "run_id": run.name,
        "study": "s",
        "study_sha256": "",
        "created_at": 0,
        "variants": ["2k"],
        "limit": None,
    }
    (run / "manifest.json").write_text(json.dumps({**head, "only": [], "entries": []}))
    done = study("status", tmp_path)
    assert done.exit_code == 0, done.exception
    assert done.output.splitlines()[:1] == [run.name] and "STRATEGY" in done.output


def test_a_missing_package_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_study(
        tmp_path, '[baseline]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'
    )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = study("baseline", tmp_path)
    assert isinstance(done.exception, InvalidInputError) and "gpuyard[studies]" in str(
        done.exception
    )


def test_right_answers_are_looked_at_too(tmp_path: Path) -> None:
    make_study(tmp_path, 'truth = "data/truth.jsonl"\n')
    assert "prompts.truth: there is no file" in study("validate", tmp_path).output
    (tmp_path / "data" / "truth.jsonl").write_text(
        '{"prompt_id": "p01", "variant": "2k", "text": "Yes."}\n'
    )
    assert "39 of 40 prompts have no right answer" in study("validate", tmp_path).output


def test_the_librarys_names_are_there() -> None:
    import gpuyard.studies as library

    for name in (
        "PromptRecord",
        "PromptFileSet",
        "PromptRepository",
        "PromptDataFrameBuilder",
        "ParallelismStrategy",
        "OpenAICompletionClient",
        "LocalInferenceRunner",
        "TensorParallelAcrossNodes",
        "HybridTensorPipeline",
        "TensorParallelSingleNode",
        "PipelineParallelAcrossNodes",
    ):
        assert getattr(library, name).__name__ == name


def test_variants_by_name(tmp_path: Path) -> None:
    make_study(
        tmp_path, '[baseline]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'
    )
    wrong = study("baseline", tmp_path, "--variant", "8k")
    assert isinstance(wrong.exception, InvalidInputError) and "2k or 4k" in str(
        wrong.exception
    )


def test_a_baseline_that_nobody_named(tmp_path: Path) -> None:
    make_study(tmp_path)
    done = study("baseline", tmp_path)
    assert isinstance(done.exception, InvalidInputError) and "add [baseline]" in str(
        done.exception
    )
