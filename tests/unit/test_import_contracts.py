"""`lint-imports` keeps the plugins apart from the core and from each other."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "gpuyard"
CONFIG = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS: list[dict[str, Any]] = CONFIG["tool"]["importlinter"]["contracts"]
PACKAGES = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
NAME = re.compile(r"\w+")
HOUSE_ROW = re.compile(r"^\| [2-6] \| `(\w+)/` \|.*\| ([^|]+) \|$", re.MULTILINE)
IMPORTED = re.compile(
    r"^ *(?:from gpuyard import ([\w, ]+)|(?:from|import) gpuyard\.(\w+))", re.MULTILINE
)
BOTH_PLUGINS = ["gpuyard.studies", "gpuyard.verification"]


def name_of(option: str, value: object) -> str:
    """The name of the contract with this value of an option."""
    return next(each["name"] for each in CONTRACTS if each.get(option) == value)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that the tests may change."""
    copy = tmp_path_factory.mktemp("src")
    skipped = shutil.ignore_patterns("__pycache__", "*.html", "*.js", "*.css")
    shutil.copytree(PACKAGE, copy / "gpuyard", ignore=skipped)
    return copy


def broken_contracts(source: Path) -> set[str]:
    """The names of the project's contracts that the code in `source` breaks."""
    command = Path(sys.executable).with_name("lint-imports")
    options = ("--no-logo", "--config", REPOSITORY / "pyproject.toml")
    environment = os.environ | {"PYTHONPATH": str(source), "NO_COLOR": "1"}
    finished = subprocess.run(
        [command, *options, "--cache-dir", source / "cache"],
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = finished.stdout.splitlines()
    broken = {line.partition(" BROKEN")[0] for line in lines if "BROKEN" in line}
    assert "Contracts: " in finished.stdout, finished.stdout + finished.stderr
    assert finished.returncode == (1 if broken else 0)
    return broken


def broken_by(source: Path, importer: str, imported: str) -> set[str]:
    """The contracts that one more line `import …` in a module breaks."""
    module = source / "gpuyard" / importer
    text = module.read_text(encoding="utf-8")
    module.write_text(f"{text}\nimport {imported}\n", encoding="utf-8")
    try:
        return broken_contracts(source)
    finally:
        module.write_text(text, encoding="utf-8")


def test_the_package_keeps_all_contracts(source: Path) -> None:
    assert broken_contracts(source) == set()


@pytest.mark.parametrize(
    "imported", ["gpuyard.studies.study", "gpuyard.verification.claims"]
)
def test_the_core_must_not_import_a_plugin(source: Path, imported: str) -> None:
    protection = name_of("protected_modules", BOTH_PLUGINS)

    assert protection in broken_by(source, "controller/core.py", imported)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("studies/study.py", "gpuyard.verification.claims"),
        ("verification/claims.py", "gpuyard.studies.study"),
    ],
)
def test_a_plugin_must_not_import_the_other(
    source: Path, importer: str, imported: str
) -> None:
    assert name_of("type", "layers") in broken_by(source, importer, imported)


def test_both_plugins_may_import_the_same_packages() -> None:
    for contract in CONTRACTS:
        if "sqlite3" in contract.get("forbidden_modules", []):
            continue  # only verification has a database of its own
        for option in ("protected_modules", "allowed_importers", "source_modules"):
            named = [plugin in contract.get(option, []) for plugin in BOTH_PLUGINS]
            assert all(named) or not any(named), contract["name"]


def imported_by(package: str) -> set[str]:
    """The other packages of ours that a package imports, also inside functions."""
    found: set[str] = set()
    for path in (PACKAGE / package).rglob("*.py"):
        # `from gpuyard import templates`, too
        for several, one in IMPORTED.findall(path.read_text(encoding="utf-8")):
            found |= {one} if one else set(NAME.findall(several))
    return found & PACKAGES - {package}


def test_the_architecture_tells_what_each_package_imports() -> None:
    """Layer 1 is always allowed, and has a rule of its own."""
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = HOUSE_ROW.findall(page)
    told = {package: set(NAME.findall(cell)) & PACKAGES for package, cell in rows}
    assert told == {
        package: imported_by(package) - {"domain", "config"} for package in told
    }
    assert set(told) == PACKAGES - {"domain", "config", "templates"}


def forbidden_to(program: str) -> set[str]:
    """The packages that a program which a plugin runs elsewhere must not import."""
    contract = next(c for c in CONTRACTS if c.get("source_modules") == [program])
    return set(contract["forbidden_modules"])


def test_the_programs_of_both_plugins_must_import_nothing_of_ours() -> None:
    runtime = forbidden_to("gpuyard.studies.runtime")
    solver = forbidden_to("gpuyard.verification.solver")

    assert runtime - solver == {"gpuyard.verification"}
    assert solver - runtime == {"gpuyard.studies"}
