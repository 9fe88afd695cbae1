"""`make audit` and `make sbom` where nobody answers: one sentence, and no verdict."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import supply

SCRIPT = Path(supply.__file__)
NOBODY = "http://127.0.0.1:1"  # the port of tcpmux, which no host serves
PROJECT = """
[project]
name = "audited"
version = "1"
requires-python = ">=3.11"
dependencies = ["six"]
"""
LOCK = """
version = 1
revision = 3
requires-python = ">=3.11"

[[package]]
name = "audited"
version = "1"
source = { virtual = "." }
dependencies = [{ name = "six" }]

[package.metadata]
requires-dist = [{ name = "six" }]

[[package]]
name = "six"
version = "1.17.0"
source = { registry = "https://pypi.org/simple" }
"""


def test_a_service_that_is_away_is_named_and_nothing_counts_as_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "uv.lock").write_text(LOCK)
    with pytest.raises(supply.SupplyError, match=f"{NOBODY} cannot be reached"):
        supply.audit_lock(tmp_path, NOBODY)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("what", [["audit"], ["sbom", "bom.json"]])
def test_an_index_that_is_away_is_one_sentence(what: list[str], tmp_path: Path) -> None:
    away = {"UV_DEFAULT_INDEX": f"{NOBODY}/simple", "UV_HTTP_RETRIES": "0"}
    mine = {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_NO_CONFIG": "1"}
    done = subprocess.run(
        [sys.executable, SCRIPT, *what],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | away | mine,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = f"{what[0]}: the package index cannot be reached from here\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert not (tmp_path / "bom.json").exists()
