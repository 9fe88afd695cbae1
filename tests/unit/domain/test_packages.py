"""The files that name packages, and what of them cannot be had."""

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.packages import PackageKind, included_files, read_packages

LOCK = """
version = 1
requires-python = ">=3.11"
[[package]]
name = "mine"
source = { editable = "." }
"""
PROJECT = """
[project]
name = "mine"
requires-python = ">=3.11"
dependencies = ["numpy"]
"""


def test_requirements_keep_what_they_include() -> None:
    files = {
        "deps/train.txt": "-r base.txt\n--constraint=limits.txt\ntorch\n",
        "deps/base.txt": "numpy  # -e nothing\n",
        "deps/limits.txt": "numpy<3\n",
        "unused.txt": "",
    }
    found = read_packages("deps/train.txt", files, "ann")
    assert found.kind is PackageKind.REQUIREMENTS
    assert found.files["requirements.txt"] == "-r deps/train.txt\n"
    assert set(found.files) - {"requirements.txt"} == set(files) - {"unused.txt"}
    assert (found.user, found.python) == ("ann", "")


def test_a_lock_and_a_project_say_which_python() -> None:
    found = read_packages("uv.lock", {"uv.lock": LOCK, "pyproject.toml": PROJECT})
    assert (found.kind, found.python) == (PackageKind.LOCK, ">=3.11")
    files = {"pyproject.toml": PROJECT, ".python-version": "# ours\n3.12\n"}
    found = read_packages("pyproject.toml", files)
    assert (found.kind, found.python) == (PackageKind.PROJECT, "3.12")


@pytest.mark.parametrize(
    ("written", "python"),
    [
        ("python=3.11", "3.11"),
        ("conda-forge::python=3.11.4=h_1", "3.11.4"),
        ("python ==3.10.1", "3.10.1"),
        ("python >=3.10, <3.13", ">=3.10,<3.13"),
        ("python=3.12.*", "3.12"),
        ("python", ""),
    ],
)
def test_of_conda_the_part_of_pip_and_the_python_count(
    written: str, python: str
) -> None:
    text = f"name: x\nchannels: [conda-forge]\ndependencies:\n  - {written!r}\n"
    text += "  - pip\n  - pip:\n    - torch==2.6\n    - -r more.txt\n"
    files = {"environment.yml": text, "more.txt": "numpy\n"}
    found = read_packages("environment.yml", files)
    assert found.python == python
    assert found.files["environment.yml.pip.txt"] == "torch==2.6\n-r more.txt\n"
    assert found.files["more.txt"] == "numpy\n"


@pytest.mark.parametrize(
    ("main", "text", "says"),
    [
        ("requirements.txt", "numpy\n-e .\n", "requirements.txt:2 `-e .` installs"),
        ("requirements.txt", "./libs/mine\n", "requirements.txt:1 `./libs/mine`"),
        ("requirements.txt", "-f wheels\n", "by a relative path"),
        ("requirements.txt", "-r ../base.txt\n", "outside its folder"),
        ("requirements.txt", "-r base.txt\n", "there is no base.txt"),
        ("environment.yml", "dependencies:\n- numpy=1\n", ":2 `numpy=1` comes from"),
        ("environment.yml", "variables: {}\n", ":1 `variables:` needs conda"),
        ("environment.yml", "dependencies: [", "is not valid YAML"),
        ("environment.yml", "- numpy\n", "is no table"),
        ("pyproject.toml", "[project]\nname = 'x'\n", "has no [project] dependencies"),
        (
            "pyproject.toml",
            "[project]\nname = 'x'\ndynamic = ['dependencies']\n",
            "pyproject.toml:3 leaves dependencies to its build",
        ),
        (
            "pyproject.toml",
            PROJECT + "[tool.uv.sources]\nlocal-one = { path = '../x' }\n",
            "pyproject.toml:7 takes local-one from a folder",
        ),
        ("pyproject.toml", "project = [", "is not valid TOML"),
        ("uv.lock", LOCK, "there is no pyproject.toml beside uv.lock"),
        ("setup.py", "", "is no file that names packages"),
        ("requirements.txt", "x" * 4_000_001, "are 4.0 MB"),
    ],
)
def test_what_cannot_be_had_is_named_with_its_line(
    main: str, text: str, says: str
) -> None:
    with pytest.raises(InvalidInputError) as info:
        read_packages(main, {main: text})
    assert says in str(info.value)


def test_a_folder_of_ones_own_in_a_lock_is_refused() -> None:
    lock = LOCK + '[[package]]\nname = "other"\nsource = { directory = "../other" }\n'
    files = {"uv.lock": lock, "pyproject.toml": PROJECT}
    with pytest.raises(
        InvalidInputError, match=r"uv\.lock:8 takes other from a folder"
    ):
        read_packages("uv.lock", files)


def test_included_files_are_found_below_the_folder_of_the_first() -> None:
    assert included_files("a/b.txt", "-r c.txt\n  -c ../d.txt\n") == [
        "a/c.txt",
        "d.txt",
    ]


@pytest.mark.parametrize("text", ["\n" * 200_000, "-" + " \n" * 100_000])
def test_empty_lines_cost_no_quadratic_time(text: str) -> None:
    """It would be hours, in which the server does nothing else."""
    found = read_packages("requirements.txt", {"requirements.txt": text})
    assert found.files == {"requirements.txt": text}


@pytest.mark.parametrize("main", ["pyproject.toml", "requirements.txt"])
def test_a_line_without_end_is_refused(main: str) -> None:
    key = ".".join(["a"] * 20_000)
    with pytest.raises(InvalidInputError, match=f"{main}:2 has 40001 characters"):
        read_packages(main, {main: f"\n{key}=1\n"})


# Each list stands for ten of the one before.
ALIASES = "channels:\n- &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    "rest",
    [
        "dependencies: [*a11]\n",
        "dependencies:\n- pip: [*a11]\n",
        "dependencies:\n- pip:\n  - {a: *a11}\n",
        "? *a11\n: x\n",
        "dependencies:\n- ? *a11\n  : x\n",
    ],
)
def test_aliases_for_billions_of_words_are_not_written_out(rest: str) -> None:
    with pytest.raises(InvalidInputError, match="a list or a table in place of a text"):
        read_packages("environment.yml", {"environment.yml": ALIASES + rest})
