"""One check: that judging it harms no other."""

import hashlib
from pathlib import Path

from gpuyard.config.verification import ExecutorSettings
from gpuyard.domain.gpus import GPUClass
from gpuyard.verification.batch_samples import BatchSample
from gpuyard.verification.check import Check
from gpuyard.verification.claims import Expected
from gpuyard.verification.executors import Executor
from gpuyard.verification.verdict import CheckOutcome
from tests.unit.verification.bundles import ANSWERS, NOW, SERIES, answer_file


def test_what_breaks_its_judge_leaves_a_check_unexplained(tmp_path: Path) -> None:
    """Else the whole batch would end, and count for nobody."""
    file = tmp_path / "answers"
    file.write_bytes(answer_file(ANSWERS))
    hidden = SERIES[4]
    taken = BatchSample("chk_1", "smp_1", "wl_1", 7, SERIES, hidden, ANSWERS[hidden])
    settings = ExecutorSettings.model_validate({"class": "t4"})
    check = Check(
        taken,
        "bat_1",
        Executor("rented", GPUClass.T4, settings),
        "own",
        10.0,
        {},
        Expected("t4", inventory=True, attestation_root="breaks"),
        released_at=NOW,
        hashed_at=NOW + 1,
        claimed_at=NOW + 2,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        answers=file,
        claims={"inventory": [{"attestation": {}}]},
    )
    check.judge()
    assert check.outcome is CheckOutcome.UNEXPLAINED
    assert "InvalidInputError" in check.reason
