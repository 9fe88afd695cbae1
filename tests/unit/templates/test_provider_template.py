"""The provider template: under the name that it is given, and under none that will not
do.
"""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from gpuyard import templates
from gpuyard.providers.conformance import CASES

GUIDE = Path(__file__).parents[3] / "docs/guides/add-a-provider.md"


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """The template as a provider `acme_gpu`."""
    templates.write("provider", tmp_path / "here", "acme_gpu")
    return tmp_path / "here"


def test_it_is_a_template_and_no_program_to_run() -> None:
    assert "provider" in templates.all_names()
    assert "provider" not in templates.names()
    assert templates.is_package("provider")
    assert not templates.is_package("nanogpt")


def test_the_name_stands_everywhere(acme: Path) -> None:
    texts = {
        path.relative_to(acme): path.read_text()
        for path in acme.rglob("*")
        if path.is_file()
    }
    assert {"pyproject.toml", "README.md", "src/gpuyard_acme_gpu/provider.py"} <= {
        str(path) for path in texts
    }
    assert not [
        path for path, text in texts.items() if "mycloud" in (str(path) + text).lower()
    ]


def test_the_entry_point_names_the_class(acme: Path) -> None:
    project = tomllib.loads((acme / "pyproject.toml").read_text())["project"]
    assert project["name"] == "gpuyard-acme_gpu"
    points = project["entry-points"]["gpuyard.providers"]
    assert points == {"acme_gpu": "gpuyard_acme_gpu.provider:AcmeGpuProvider"}
    tree = ast.parse((acme / "src/gpuyard_acme_gpu/provider.py").read_text())
    assert "AcmeGpuProvider" in {
        node.name for node in tree.body if isinstance(node, ast.ClassDef)
    }


def test_what_is_returned_is_what_is_there(tmp_path: Path) -> None:
    written = templates.write("provider", tmp_path / "acme")
    assert sorted(written) == sorted(
        path for path in (tmp_path / "acme").rglob("*") if path.is_file()
    )
    assert tmp_path / "acme/src/gpuyard_acme/toycloud.py" in written


def test_the_folder_gives_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme").mkdir()
    monkeypatch.chdir(tmp_path / "acme")
    templates.write("provider", Path())
    assert (tmp_path / "acme/src/gpuyard_acme/provider.py").exists()


def test_a_name_that_holds_the_placeholder_is_put_in_once(tmp_path: Path) -> None:
    templates.write("provider", tmp_path / "here", "mycloud2")
    assert (tmp_path / "here/src/gpuyard_mycloud2/provider.py").exists()
    assert (
        "class MyCloud"
        not in (tmp_path / "here/src/gpuyard_mycloud2/provider.py").read_text()
    )
    assert (
        "class Mycloud2Provider"
        in (tmp_path / "here/src/gpuyard_mycloud2/provider.py").read_text()
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Acme",
        "my-cloud",
        "2clouds",
        "_x",
        "x_",
        "a__b",
        "a.b",
        "a/b",
        "../x",
        "a b",
        "ä",
        "x\n",
        "a" * 41,
    ],
)
def test_a_name_that_will_not_do_is_refused_and_nothing_written(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(
        templates.BadNameError,
        match=r"cannot be the name of a provider; .*such as my_cloud",
    ):
        templates.write("provider", tmp_path / "here", name)
    assert not (tmp_path / "here").exists()


def test_the_name_of_another_provider_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        templates.BadNameError, match="'slurm' is installed; choose another"
    ):
        templates.write("provider", tmp_path / "slurm")
    assert not (tmp_path / "slurm").exists()


def test_a_program_has_no_name_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(templates.BadNameError, match="leave --name out"):
        templates.write("nanogpt", tmp_path / "here", "gpt")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("name", ["a", "x1", "my_cloud_2", "a" * 40])
def test_every_name_that_will_do_makes_programs_that_can_be_read(
    tmp_path: Path, name: str
) -> None:
    for path in templates.write("provider", tmp_path / "here", name):
        if path.suffix == ".py":
            ast.parse(path.read_text())


def test_the_guide_names_every_case_of_the_suite() -> None:
    words = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    assert [case.name for case in CASES if case.name not in words] == []
