"""What was measured comes before what is computed."""

from typing import Any

import pytest

from gpuyard.domain.program_needs import MeasuredNeeds
from gpuyard.insight.needs.measured import answer_of, corrected, needs_of
from gpuyard.insight.needs.recommend import Recommendation, recommend
from gpuyard.insight.needs.sources import Sources

SOURCE = """
import torch
from transformers import GPT2LMHeadModel
model = GPT2LMHeadModel.from_pretrained('gpt2-large').cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch_size = 2
for step in range(1000):
    optimizer.step()
"""
UNKNOWN = "import torch\nnet = make_net().cuda()\n"


def found(source: str = SOURCE) -> Recommendation:
    return recommend(Sources({"train.py": source}, "train.py"), [])


def answer(measured: dict[str, Any], source: str = SOURCE) -> dict[str, Any]:
    known = MeasuredNeeds.model_validate(measured)
    return answer_of(corrected(found(source), known))


PEAK = {"runs": 3, "peak_gb": 30.0, "job_id": "job_0123456789abcdef"}


def test_a_measured_peak_replaces_what_was_computed() -> None:
    before = answer({})
    assert before["needs"]["gpu_memory_gb"] == 24
    assert before["measured"] is None
    after = answer({"own": PEAK})
    assert after["needs"]["gpu_memory_gb"] == 40
    assert after["needed_gb"] == 33
    assert after["tier"] != before["tier"]
    assert after["confidence"] == "high"
    assert after["lines"][-1]["says"] == (
        "measured: 30.0 GB in job 89abcdef, peak of 3 runs; with a margin 33.0 GB"
    )
    smaller = answer({"own": {**PEAK, "peak_gb": 9.1, "runs": 1}})
    assert smaller["needed_gb"] == pytest.approx(10.01)
    assert "9.1 GB in job 89abcdef, peak of 1 run;" in smaller["lines"][-1]["says"]


def test_what_nobody_could_read_is_known_once_it_was_measured() -> None:
    before = answer({}, UNKNOWN)
    assert (before["needs"]["gpu_memory_gb"], before["confidence"]) == (None, "low")
    after = answer({"own": {**PEAK, "peak_gb": 9.0}}, UNKNOWN)
    assert (after["needs"]["gpu_memory_gb"], after["confidence"]) == (16, "high")
    assert not any(each.startswith("the size") for each in after["unknown"])


def test_a_job_without_memory_asks_for_the_next_larger_gpu() -> None:
    failed = {"failed_on_gb": 24.0, "failed_job_id": "job_0123456789abcdef"}
    after = answer({"own": failed})
    assert after["needs"]["gpu_memory_gb"] == 32
    assert "ran out of memory on a GPU with 24 GB" in after["lines"][-1]["says"]
    assert answer({"own": {**failed, **PEAK}})["needs"]["gpu_memory_gb"] == 40


def test_programs_like_it_teach_without_a_name() -> None:
    computed = found().needed_gb
    assert computed is not None
    after = answer({"alike": {"runs": 4, "memory": 2.0}})
    assert after["needed_gb"] == pytest.approx(2.2 * computed, abs=0.01)
    assert (
        "took 2 times the memory that was computed, in 4 runs"
        in (after["lines"][-1]["says"])
    )
    assert after["confidence"] == answer({})["confidence"]


def test_measured_times_move_the_hours_of_all_classes() -> None:
    before = answer({})
    seconds = 3600 * before["hours"]["a10g"] * 2
    time = {"gpu_class": "a10g", "seconds": seconds, "runs": 2, "job_id": "job_1"}
    after = answer({"own": {"times": [time]}})
    for name, hours in before["hours"].items():
        assert after["hours"][name] == pytest.approx(2 * hours, rel=0.1)
    assert "on a10g in job job_1, median of 2 runs" in after["lines"][-1]["says"]

    needs = needs_of(found())
    assert needs.teraflops is not None
    rate = 3600 * 3 / needs.teraflops
    after = answer({"alike": {"runs": 1, "gpu_s_per_teraflop": {"a10g": rate}}})
    assert after["hours"]["a10g"] == 3
    assert "3h00m on a10g, by 1 run" in after["lines"][-1]["says"]

    without = answer({"own": {"times": [{**time, "seconds": 7200}]}}, UNKNOWN)
    assert without["hours"]["a10g"] == 2
    assert without["unknown"] == ["the size of the model: the program does not say it"]


def test_the_kind_of_a_program_is_what_its_memory_comes_from() -> None:
    kind = needs_of(found()).kind
    assert kind is not None
    assert needs_of(found(SOURCE + "\nprint('done')\n")).kind == kind
    assert needs_of(found(SOURCE.replace("range(1000)", "range(9)"))).kind == kind
    for other in ("SGD", "batch_size = 3", "gpt2-medium"):
        was = {"SGD": "AdamW", "gpt2-medium": "gpt2-large"}.get(other, "batch_size = 2")
        assert needs_of(found(SOURCE.replace(was, other))).kind != kind
    assert needs_of(found(UNKNOWN)).kind is None
    assert needs_of(found("print(1)\n")).gpus == 0
