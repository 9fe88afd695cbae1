"""The solver as one file, and what is left of such files."""

import json
import os
import subprocess
import sys
from pathlib import Path

from gpuyard.verification.packing import pack_solver, remove_old_programs
from gpuyard.verification.protocol import WORD
from gpuyard.verification.solver.order import VERSION

ORDER = {
    "version": VERSION,
    "check": "chk_1",
    "task": "probe",
    "claims": {"nonce": "00", "vram_gb": 1 / 2048, "passes": 16},
}


def test_the_file_runs_by_itself_and_compiles_what_is_in_it(tmp_path: Path) -> None:
    file = pack_solver(tmp_path)
    done = subprocess.run(
        [sys.executable, file.name],
        cwd=file.parent,
        input=json.dumps(ORDER),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(WORD), done.stdout
    proof = json.loads(last.removeprefix(WORD))["vram"]
    assert len(proof.get("digest", "")) == 64, proof


def test_no_two_files_are_alike(tmp_path: Path) -> None:
    files = [pack_solver(tmp_path) for _ in range(8)]
    assert len({file.stat().st_size for file in files}) > 1
    assert len({file.name for file in files}) > 1
    assert len({file.parent for file in files}) == 8


def test_what_a_killed_process_left_behind_is_removed(tmp_path: Path) -> None:
    old = pack_solver(tmp_path)
    new = pack_solver(tmp_path)
    os.utime(old.parent, (1000, 1000))
    remove_old_programs(tmp_path, 2000)
    assert new.exists() and not old.parent.exists()
    remove_old_programs(tmp_path / "nothing", 2000)
