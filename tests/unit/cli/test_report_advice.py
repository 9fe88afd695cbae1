"""Advice on costs, as the command shows it."""

from decimal import Decimal

import pytest

from gpuyard.cli.report_advice import print_advice
from gpuyard.domain.cost_advice import AdviceTopic, CostAdvice, CostAdviceReport


def test_each_advice_has_a_row_and_its_reasons(
    capsys: pytest.CaptureFixture[str],
) -> None:
    item = CostAdvice(
        topic=AdviceTopic.GPU_IDLE,
        user="ana",
        program="train",
        attempts=2,
        jobs=["job_1", "job_2"],
        hours=20.0,
        currency="USD",
        amount=Decimal("50.12"),
        saved=Decimal("37.096"),
        measured="its GPUs were busy 25% of 20.0 GPU hours",
        remedy="ask for fewer GPUs",
    )
    report = CostAdviceReport(
        begin=0.0,
        end=1.0,
        items=[item],
        attempts=4,
        memory_measured=3,
        gpu_hours=30.0,
        gpu_hours_measured=20.0,
    )
    print_advice(report)
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[1].split()) == "1 $37.10 $50.12 ana train 2 GPU idle"
    assert lines[3] == (
        "1. Its GPUs were busy 25% of 20.0 GPU hours. Ask for fewer GPUs. For example"
        " job_1, job_2."
    )
    assert "the memory of 1 of 4 attempts" in lines[-1]
    assert "10.0 of 30.0 GPU hours" in lines[-1]
