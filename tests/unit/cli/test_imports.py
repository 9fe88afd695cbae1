"""What makes a command slow to start is not imported by those that must be instant."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.cli.listing import plain_options

RUN = """
import sys
from gpuyard.cli.entry import main
sys.argv = ["gpuyard", *sys.argv[1:]]
try:
    main()
finally:
    sys.stdout.write("IMPORTED " + " ".join(sys.modules))
"""


@pytest.mark.parametrize(
    ("words", "light", "code"),
    [
        (["--help"], {"httpx", "pydantic", "rich", "fastapi", "asyncio"}, 0),
        (
            ["jobs"],
            {"typer", "httpx", "pydantic", "rich", "msgspec", "asyncio", "subprocess"},
            5,
        ),
    ],
    ids=["help", "a listing"],
)
def test_what_must_be_instant_imports_nothing_slow(
    words: list[str], light: set[str], code: int
) -> None:
    environment = {"GPUYARD_URL": "http://127.0.0.1:1", "GPUYARD_TOKEN": "x"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert not light & set(done.stdout.rpartition("IMPORTED ")[2].split())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ([], {}),
        (["--json", "-n", "5"], {"as_json": True, "limit": 5}),
        (
            ["--state", "queued", "--state", "running", "--name", "a b"],
            {"state": ["queued", "running"], "name": "a b"},
        ),
        (
            ["--label", "a=1", "--since", "2h", "--label", "b=2"],
            {"label": ["a=1", "b=2"], "since": "2h"},
        ),
        (["--limit", "0"], None),
        (["-n", "²"], None),
        (["-n5"], None),
        (["--name=a"], None),
        (["--name"], None),
        (["--name", "--json"], None),
        (["--help"], None),
        (["job_1"], None),
    ],
)
def test_only_plain_words_are_read_without_typer(
    words: list[str], meant: dict[str, object] | None
) -> None:
    assert plain_options(words) == meant


def test_the_entry_point_is_the_light_one() -> None:
    project = Path(__file__).parents[3] / "pyproject.toml"
    assert 'gpuyard = "gpuyard.cli.entry:main"' in project.read_text()
