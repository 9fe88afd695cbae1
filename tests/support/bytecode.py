"""Compile the tests once, so that not every worker of pytest does so by itself.

pytest rewrites the assertions of a file of tests and keeps the result in `__pycache__`,
but not while `PYTHONDONTWRITEBYTECODE` is set, and in a new checkout all its workers do
so at the same time. It reads what is there in any case.
"""

import compileall
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast

from _pytest.assertion import rewrite

_TESTS = Path(__file__).parents[1]


def compile_tests() -> None:
    """Compile every file of the tests that has changed, on all cores."""
    files = sorted(_TESTS.rglob("*.py"))
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(compile_file, files, chunksize=20):
            pass


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
