"""`gpuyard recommend`, which reads files and asks no server."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.cli.program_files import read_program
from gpuyard.cli.recommended import may_be_recommended
from gpuyard.domain.errors import InvalidInputError

SOURCE = (
    "import torch\n"
    "from transformers import GPT2LMHeadModel\n"
    "model = GPT2LMHeadModel.from_pretrained('gpt2-large').cuda()\n"
    "optimizer = torch.optim.AdamW(model.parameters())\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_people_see_the_tier_and_the_lines(folder: Path) -> None:
    result = CliRunner().invoke(app, ["recommend", "train.py"])
    assert result.exit_code == 0
    assert result.stdout.startswith("train.py: GPU_SMALL, 1 GPU with 16 GB.")
    assert "774 M parameters, AdamW fp32 ≈ 12.4 GB" in result.stdout
    assert "don't know the run time" in result.stdout
    assert "GPU_LARGE" in result.stdout


@pytest.mark.parametrize(
    "words", [["--json", "train.py"], ["train.py", "--json"], ["."]]
)
def test_programs_get_json_and_folders_their_program(
    folder: Path, words: list[str]
) -> None:
    result = CliRunner().invoke(app, ["recommend", *words])
    assert result.exit_code == 0
    if "--json" in words:
        assert json.loads(result.stdout)["needs"]["gpus"] == 1


def test_a_launcher_before_the_program_is_read(folder: Path) -> None:
    files = read_program(
        ["torchrun", "--nproc-per-node", "4", "train.py", "--lr", "1"], folder
    )
    assert files.launcher == ("torchrun", "--nproc-per-node", "4")
    assert files.entry == "train.py"
    assert files.arguments == ("--lr", "1")
    module = ["python3", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    files = read_program([*module, "train.py"], folder)
    assert (files.launcher, files.entry) == (tuple(module), "train.py")


def test_a_module_is_found_in_its_package(folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__main__.py").write_text("x = 1\n")
    (folder / "pkg" / "fit.py").write_text("x = 2\n")
    assert read_program(["python", "-m", "pkg"], folder).entry == "pkg/__main__.py"
    files = read_program(["python3", "-m", "pkg.fit", "--a"], folder)
    assert files.entry == "pkg/fit.py"
    assert files.arguments == ("--a",)


def test_packages_above_the_program_are_read_with_it(folder: Path) -> None:
    """As in a project whose programs have a folder to themselves."""
    for name in ("nets", "unused", "torch"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("x = 1\n")
    (folder / "pyproject.toml").write_text("")
    (folder / "scripts").mkdir()
    source = "import torch\nfrom nets import x\n"
    (folder / "scripts" / "fit.py").write_text(source)
    files = read_program(["scripts/fit.py"], folder)
    assert set(files.texts) == {"fit.py", "nets/__init__.py"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "train.py"], True),
        (["python", "-m", "train", "--lr", "1"], True),
        (["torchrun", "train.py"], True),
        (["python", "start.py"], True),
        (["python", "plain.py"], False),
        (["python", "-m", "http.server"], False),
        (["python", "missing.py"], False),
        (["echo", "torch"], False),
    ],
)
def test_programs_with_models_are_worth_a_recommendation(
    folder: Path, command: list[str], expected: bool
) -> None:
    (folder / "start.py").write_text("import train\ntrain.main()\n")
    (folder / "plain.py").write_text("import json\n")
    body = {"command": command, "workdir": str(folder)}
    assert may_be_recommended(body) is expected
    assert not may_be_recommended({**body, "resources": {"gpus": {"count": 1}}})


def test_pyproject_names_the_program(folder: Path) -> None:
    (folder / "app.py").write_text("def main():\n    pass\n")
    (folder / "pyproject.toml").write_text(
        "[project]\nname = 'a'\n[project.scripts]\nfit = 'app:main'\n"
    )
    assert read_program(["."], folder).entry == "app.py"


def test_bad_files_get_one_clear_error(folder: Path) -> None:
    (folder / "binary.py").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "empty").mkdir()
    with (folder / "large.py").open("wb") as large:
        large.truncate(50_000_000)
    os.mkfifo(folder / "pipe.yaml")
    os.mkfifo(folder / "pipe.py")  # who opens it waits for a writer
    with pytest.raises(InvalidInputError, match="there is no"):
        read_program(["missing.py"], folder)
    with pytest.raises(InvalidInputError, match=r"there is no file .*pipe\.py"):
        read_program(["pipe.py"], folder)
    with pytest.raises(InvalidInputError, match="there is no"):
        read_program(["x" * 5000], folder)
    assert read_program(["train.py", "--config", "pipe.yaml"], folder).texts
    with pytest.raises(InvalidInputError, match="not UTF-8"):
        read_program(["binary.py"], folder)
    with pytest.raises(InvalidInputError, match="50 MB"):
        read_program(["large.py"], folder)
    with pytest.raises(InvalidInputError, match="which program"):
        read_program(["empty"], folder)
