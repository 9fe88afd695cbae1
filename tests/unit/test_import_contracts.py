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
# A module of the core or of a plugin, and one of a plugin that it must not import.
WRONG_IMPORTS = (
    ("gpuyard.controller.core", "gpuyard.studies.study"),
    ("gpuyard.controller.core", "gpuyard.verification.claims"),
    ("gpuyard.studies.study", "gpuyard.verification.claims"),
    ("gpuyard.verification.claims", "gpuyard.studies.study"),
)


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


def lint(source: Path) -> str:
    """What `lint-imports` says of the code in `source`, by the project's contracts."""
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
    assert "Contracts: " in finished.stdout, finished.stdout + finished.stderr
    assert finished.returncode == (1 if "BROKEN" in finished.stdout else 0)
    return finished.stdout


def test_the_package_keeps_all_contracts_and_each_import_between_plugins_breaks_one(
    source: Path,
) -> None:
    """All wrong imports are there at once: to lint takes half a second each time."""
    assert "BROKEN" not in lint(source)
    for importer, imported in WRONG_IMPORTS:
        module = source.joinpath(*importer.split(".")).with_suffix(".py")
        text = module.read_text(encoding="utf-8")
        module.write_text(f"{text}\nimport {imported}\n", encoding="utf-8")
    said = lint(source)
    assert f"{name_of('protected_modules', BOTH_PLUGINS)} BROKEN" in said
    assert f"{name_of('type', 'layers')} BROKEN" in said
    for importer, imported in WRONG_IMPORTS:
        assert re.search(rf"{importer} ?-> ?{imported} \(", said), said


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
