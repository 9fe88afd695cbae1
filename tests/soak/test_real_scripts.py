"""The needs of real public training scripts, as people who read them say: their needs,
and not the words for them. `make soak` runs it, because the scripts are downloaded.
"""

import os
from pathlib import Path

import pytest

from tests.support.environments import cache_of_tests
from tests.support.real_scripts import (
    UNKNOWN,
    found_class,
    package_in,
    read_in,
    scripts_of,
)

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "GPUYARD_REAL_SCRIPTS" not in os.environ, reason="`make soak` runs it"
    ),
]
MANIFEST = Path(__file__).parents[1] / "unit/insight/needs/real_packages.json"
# Of which nothing is known, though a person knows it.
MOST_SILENT = 3


def test_what_is_read_off_real_scripts_is_what_people_expect() -> None:
    cache = cache_of_tests() / "real-scripts"
    scripts = scripts_of(MANIFEST)
    assert len(scripts) >= 30
    wrong: list[str] = []
    silent: list[str] = []
    for script in scripts:
        found = read_in(script, package_in(cache, script))
        answer = found_class(found)
        said = f"{script.source} {script.path}: {answer}, and not {script.expected}"
        if answer not in script.expected:
            (silent if answer == UNKNOWN else wrong).append(said)
        gpus = found["needs"]["gpus"]
        if gpus != script.gpus:
            wrong.append(f"{script.path}: {gpus} GPUs, and not {script.gpus}")
    assert not wrong
    assert len(silent) <= MOST_SILENT, silent
