"""Cheaters as real processes, each on a GPU of its own: they fail, get no more jobs, and nobody else is touched.

There are no GPUs here: a fake NVML shows them, and solvers are mocks. So speed and memory can be asked for, and nobody
can prove them; what an honest executor claims is shown in tests/integration/verification.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.verification import receipts
from gpuyard.verification.times import now
from tests.support.nvml import FakeGpus
from tests.support.nvml.fixtures import fake_gpus, nvml_library  # noqa: F401  (fixtures)
from tests.support.verifying import cheating, configure, executor, outcomes, verify
from tests.support.wait import wait_until
from tests.support.yard import TestYard, make_yard

# Each has its GPU, by its place here; "late" has an engine that is slow, the others a solver that was changed.
CHEATERS = ("smaller", "replays", "refuses", "hears", "leaves", "invents", "forges", "late")
WORDS = {
    "smaller": "differs from the trusted one", "replays": "lack", "refuses": "declined", "hears": "declined",
    "leaves": "no hash of answers came", "invents": "hash", "forges": "is not signed by", "late": "deadline: took",
}  # fmt: skip


def uuid(number: int) -> str:
    """The GPU with this number."""
    return f"GPU-{number:08d}-0000-0000-0000-000000000000"


def t4(name: str, number: int, **fields: Any) -> str:
    """An executor that says it is a T4, and has the GPU with this number."""
    return executor(name, "t4", gpu=uuid(number), **fields)


@pytest.fixture
def yard(fake_gpus: FakeGpus) -> Iterator[TestYard]:  # noqa: F811
    """Ten GPUs."""
    for number in range(10):
        fake_gpus.add(uuid(number), name="Tesla T4", memory_mb=15360, cc="7.5")
    with make_yard(**fake_gpus.env(), GPUYARD_NODE__DISCOVERY_S="0.2") as made:
        yield made


def sections(yard: TestYard, names: Sequence[str]) -> list[str]:
    late = {"engine": {"options": {"delay_s": 40}}}
    return [
        t4("trusted", 8, trusted=True), t4("honest", 9),
        *(t4(name, CHEATERS.index(name), **(late if name == "late" else {"python": cheating(yard, name)}))
          for name in names),
    ]  # fmt: skip


def forged(yard: TestYard) -> None:
    """A receipt that the yard is said to have signed, for the executor that forges."""
    receipt = receipts.Receipt("r1", "forges", "job_1", "t4", now() - 5, 3600.0, "yard")
    (yard.work / "forges.memory").write_text(json.dumps([receipts.sign(receipt, Ed25519PrivateKey.generate())]))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_cheater_fails_and_gets_no_jobs_until_it_is_forgotten(yard: TestYard) -> None:
    configure(yard, *sections(yard, CHEATERS))
    forged(yard)
    found = verify(yard, "honest", "replays")
    assert outcomes(found) == {"honest": "passed", "replays": "passed"}, "it has nothing to replay yet"
    found = verify(yard, "honest", *CHEATERS, code=1, timeout=200)
    assert outcomes(found) == {"honest": "passed", **dict.fromkeys(CHEATERS, "failed")}, found
    for name in CHEATERS:
        assert WORDS[name] in found[name]["reason"], found[name]
    places = {one["place"]: one["quarantined_until"] for one in yard.json("trust")["items"]}
    assert places.pop(f"gpu:{uuid(9)}") is None
    assert set(places) == {f"gpu:{uuid(number)}" for number in range(8)}
    assert min(places.values()) > now() + 3 * 3600
    assert gets_no_job(yard, 0)
    # What is asked of it goes there all the same, and failing again makes it worse.
    again = verify(yard, "honest", "smaller", code=1)
    assert outcomes(again) == {"honest": "passed", "smaller": "failed"}
    assert yard.json("trust")["items"][0]["quarantined_until"] > places[f"gpu:{uuid(0)}"] + 3 * 3600
    check_evidence(yard)


def gets_no_job(yard: TestYard, number: int) -> bool:
    """A job for this GPU waits and says why, until the GPU is forgotten; one for another GPU runs."""
    command = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    waits = yard.submit(command, resources={"gpus": {"count": 1, "uuid": [uuid(number)]}})
    why = yard.json("why", waits)
    assert (why["pending"], why["constraint"]) == (True, "quarantined")
    assert "verification of smaller: comparison" in why["summary"]
    other = yard.submit(command, resources={"gpus": {"count": 1, "uuid": [uuid(9)]}})
    assert yard.wait(other).state == "completed"
    assert yard.job(waits).state == "pending"
    yard.ok("trust", "forget", f"gpu:{uuid(number)}")
    assert yard.wait(waits).state == "completed"
    return True


def check_evidence(yard: TestYard) -> None:
    """What speaks against each stands in a file that is sound."""
    for one in yard.json("verify", "status")["executors"]:
        if one["name"] in CHEATERS:
            told = yard.json("verify", "evidence", one["checks"][0]["id"])
            assert (told["outcome"], told["sound"]) == ("failed", True)


@pytest.mark.timeout(200)
def test_lies_about_the_class_and_one_gpu_behind_two_are_found(yard: TestYard, fake_gpus: FakeGpus) -> None:  # noqa: F811
    fake_gpus.set(uuid(0), name="NVIDIA GeForce GTX 1080", memory_mb=8192, cc="6.1")
    fake_gpus.set(uuid(1), memory_mb=8192)
    wait_until(lambda: len(yard.json("gpus")["items"]) == 10, 30, "the GPUs")
    configure(yard, t4("trusted", 8, trusted=True), t4("true", 2), t4("name", 0), t4("memory", 1))
    done = yard.run("verify", "run", "true", "name", "memory", "--claims", "--json")
    assert done.returncode == 1, done.stderr
    reasons = {item["executor"]: item["reason"] for item in json.loads(done.stdout)["items"]}
    assert "model: " in reasons["name"] and "GTX 1080" in reasons["name"]
    assert "memory: " in reasons["memory"]
    # All that can be said of a true one here is that it proved nothing.
    assert "failed" in reasons["true"] or "GiB held" in reasons["true"] or "vram" in reasons["true"]
    assert "model" not in reasons["true"] and "uuid" not in reasons["true"]
