"""Compile the tests once, so that not every worker of pytest does so by itself.

    python -m tests.support.bytecode [FOLDER]

pytest rewrites the assertions of a file of tests and keeps the result in `__pycache__`,
but not while `PYTHONDONTWRITEBYTECODE` is set, and in a new checkout all its workers do
so at the same time. It reads what is there in any case. The same holds for the
packages of its plugins, whose assertions it rewrites as well.
"""

import compileall
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from _pytest.assertion import rewrite

_TESTS = Path(__file__).parents[1]
# Its plugin is switched off in pyproject.toml.
_UNUSED = ("schemathesis",)


def compile_tests(folder: Path = _TESTS) -> None:
    """Compile every file of the tests in `folder`, of what they share and of pytest's
    plugins that has changed, on all cores.
    """
    tests = {*folder.rglob("*.py"), *(_TESTS / "support").rglob("*.py")}
    conftests = set(_TESTS.glob("*.py"))
    with ProcessPoolExecutor() as pool:
        plugins = pool.map(_keep_rewritten, plugin_files(), chunksize=20)
        ours = pool.map(compile_file, sorted(tests | conftests), chunksize=20)
        for _ in (*plugins, *ours):
            pass


def plugin_files() -> list[Path]:
    """The files of the packages that pytest's plugins are from."""
    return [
        Path(str(distribution.locate_file(file)))
        for distribution in metadata.distributions()
        if any(point.group == "pytest11" for point in distribution.entry_points)
        and distribution.name not in _UNUSED
        for file in distribution.files or ()
        if file.suffix == ".py"
    ]


def compile_file(source: Path) -> None:
    """Compile one file, as pytest does if it rewrites this one."""
    if source.name == "conftest.py" or source.name.startswith("test_"):
        _keep_rewritten(source)
    else:
        compileall.compile_file(source, quiet=1)


def _keep_rewritten(source: Path) -> None:
    folder = rewrite.get_cache_dir(source)
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / (source.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(source, kept) is not None:
        return
    # Of pytest's configuration it needs nothing that we set.
    source_hash, code = rewrite._rewrite_test(source, cast(Any, None))
    partial = kept.with_name(f"{kept.name}.{os.getpid()}")
    with partial.open("wb") as file:
        rewrite._write_pyc_fp(file, source_hash, code)
    partial.replace(kept)


if __name__ == "__main__":
    compile_tests(*map(Path, sys.argv[1:]))
