"""Listing templates and writing them out."""

import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from gpuyard import templates


def test_every_template_has_a_name_and_a_line() -> None:
    assert "nanogpt" in templates.names()
    assert templates.describe("nanogpt").startswith("nanogpt: a compact GPT")


def test_write_copies_all_files(tmp_path: Path) -> None:
    written = templates.write("nanogpt", tmp_path / "new" / "gpt")
    names = {path.name for path in written}
    assert {
        "train.py",
        "model.py",
        "launch.py",
        "requirements.txt",
        "job.toml",
        "README.md",
    } <= names
    folder = Path(templates.__file__).parent
    for path in written:
        assert path.parent == tmp_path / "new" / "gpt"
        is_shared = path.name in ("report.py", "signals.py")
        source = folder / ("shared" if is_shared else "nanogpt")
        assert path.read_bytes() == (source / path.name).read_bytes()


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("nanogpt", {"report.py", "signals.py"}),
        ("resnet-cifar10", {"report.py", "signals.py", "training.py"}),
    ],
)
def test_a_program_gets_the_shared_files_that_it_imports(
    tmp_path: Path, name: str, shared: set[str]
) -> None:
    written = {path.name for path in templates.write(name, tmp_path / name)}
    assert written & {"report.py", "signals.py", "training.py"} == shared


def test_write_takes_an_empty_directory_and_refuses_another(tmp_path: Path) -> None:
    templates.write("nanogpt", tmp_path)
    (tmp_path / "train.py").write_text("mine now")
    with pytest.raises(FileExistsError, match="is not empty"):
        templates.write("nanogpt", tmp_path)
    assert (tmp_path / "train.py").read_text() == "mine now"


def test_write_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(FileExistsError):
        templates.write("nanogpt", tmp_path / "taken")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nanogtp", "did you mean nanogpt?"),
        ("resnet", "there is bert-finetune, diffusion"),
        ("", "there is bert-finetune, diffusion"),
    ],
)
def test_unknown_template_names_the_known_and_the_nearest(
    tmp_path: Path, name: str, hint: str
) -> None:
    with pytest.raises(templates.UnknownTemplateError) as caught:
        templates.write(name, tmp_path / "new")
    assert hint in str(caught.value)
    assert not (tmp_path / "new").exists()
    with pytest.raises(LookupError):
        templates.describe(name)


@pytest.mark.parametrize(
    ("file", "size"), [("job.toml", "baby"), ("job.gpu.toml", "gpt2")]
)
def test_jobs_are_toml_that_the_program_understands(
    tmp_path: Path, load: Callable[[str], ModuleType], file: str, size: str
) -> None:
    templates.write("nanogpt", tmp_path)
    job = tomllib.loads((tmp_path / file).read_text())
    python, program, *arguments = job["command"]
    assert (python, program) == ("python3", "launch.py"), shlex.join(job["command"])
    resume = [
        argument.format(path="out/ckpt-000100.pt")
        for argument in job["checkpoint"]["resume_args"]
    ]
    options = load("options").parse([*arguments, *resume])
    assert options.size == size
    assert options.resume == Path("out/ckpt-000100.pt")
    assert Path("out/ckpt-000100.pt").match(job["checkpoint"]["path"])
