"""Cheaters as real processes, each on a GPU of its own: they fail, get no more jobs,
and nobody else is touched.

There are no GPUs here: a fake NVML shows them, and solvers are mocks. So an inventory
can be true, and speed and memory can be asked for and not be proven; what an honest
executor claims of those is shown in tests/integration/verification.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.domain.gpus import GPUClass
from gpuyard.verification import receipts
from gpuyard.verification.check import INSTANCE
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.clock import steady_now
from tests.support.instance import TestInstance, make_instance
from tests.support.nvml import FakeGpus
from tests.support.verifying import (
    cheating,
    configure,
    executor,
    outcomes,
    section,
    verify,
)

# Each has its GPU, by its place here.
CHEATERS = (
    "smaller",
    "replays",
    "refuses",
    "hears",
    "leaves",
    "invents",
    "forges",
    "guesses",
)
WORDS = {
    "smaller": "differs from the trusted one",
    "replays": "lack",
    "refuses": "declined",
    "hears": "declined",
    "leaves": "no hash of answers came",
    "invents": "hash",
    "forges": "is not signed by",
    "guesses": "differs from the trusted one",
}
# What the evidence says of an inventory, and of claims that nobody can prove here.
INVENTORY = ("model", "memory", "compute_capability", "uuid", "driver")
UNPROVEN = {"vram", "vram_digest", "speed_digest"}


def uuid(number: int) -> str:
    """The GPU with this number."""
    return f"GPU-{number:08d}-0000-0000-0000-000000000000"


def p100(name: str, number: int, **fields: Any) -> str:
    """An executor that says it is a P100, and has the GPU with this number."""
    return executor(name, "p100", gpu=uuid(number), **fields)


@pytest.fixture
def instance(fake_gpus: FakeGpus) -> Iterator[TestInstance]:
    """Ten GPUs."""
    for number in range(10):
        fake_gpus.add(
            uuid(number), name="Tesla P100-PCIE-16GB", memory_mb=16280, cc="6.0"
        )
    with make_instance(**fake_gpus.env(), GPUYARD_NODE__DISCOVERY_S="0.2") as made:
        yield made


def sections(instance: TestInstance, names: Sequence[str]) -> list[str]:
    return [
        p100("trusted", 8, trusted=True),
        p100("honest", 9),
        *(
            p100(name, CHEATERS.index(name), python=cheating(instance, name))
            for name in names
        ),
    ]


def forged(instance: TestInstance) -> None:
    """A receipt that the instance is said to have signed, for the executor that
    forges.
    """
    receipt = receipts.Receipt(
        "r1", "forges", "job_1", "p100", steady_now() - 5, 3600.0, INSTANCE
    )
    (instance.work / "forges.memory").write_text(
        json.dumps([receipts.sign(receipt, Ed25519PrivateKey.generate())])
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_each_cheater_fails_and_gets_no_jobs_until_it_is_forgotten(
    instance: TestInstance,
) -> None:
    configure(instance, *sections(instance, CHEATERS))
    forged(instance)
    found = verify(instance, "honest", "replays")
    assert outcomes(found) == {
        "honest": "passed",
        "replays": "passed",
    }, "it has nothing to replay yet"
    found = verify(instance, "honest", *CHEATERS, code=1, timeout=150)
    assert outcomes(found) == {
        "honest": "passed",
        **dict.fromkeys(CHEATERS, "failed"),
    }, found
    for name in CHEATERS:
        assert WORDS[name] in found[name]["reason"], found[name]
    places = {
        one["place"]: one["quarantined_until"]
        for one in instance.json("trust")["items"]
    }
    assert places.pop(f"gpu:{uuid(9)}") is None
    assert set(places) == {f"gpu:{uuid(number)}" for number in range(len(CHEATERS))}
    assert min(places.values()) > steady_now() + 3 * 3600
    assert gets_no_job(instance, 0)
    # What is asked of it goes there all the same, and failing again makes it worse.
    again = verify(instance, "honest", "smaller", code=1)
    assert outcomes(again) == {"honest": "passed", "smaller": "failed"}
    assert (
        instance.json("trust")["items"][0]["quarantined_until"]
        > places[f"gpu:{uuid(0)}"] + 3 * 3600
    )
    check_evidence(instance)


def gets_no_job(instance: TestInstance, number: int) -> bool:
    """A job for this GPU waits and says why, until the GPU is forgotten; one for
    another GPU runs.
    """
    command = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    waits = instance.submit(
        command, resources={"gpus": {"count": 1, "uuid": [uuid(number)]}}
    )
    why = instance.json("why", waits)
    assert (why["pending"], why["constraint"]) == (True, "quarantined")
    assert "verification of smaller: comparison" in why["summary"]
    other = instance.submit(
        command, resources={"gpus": {"count": 1, "uuid": [uuid(9)]}}
    )
    assert instance.wait(other).state == "completed"
    assert instance.job(waits).state == "queued"
    instance.ok("trust", "forget", f"gpu:{uuid(number)}")
    assert instance.wait(waits).state == "completed"
    return True


def check_evidence(instance: TestInstance) -> None:
    """What speaks against each stands in a file that is sound."""
    for one in instance.json("verify", "status")["executors"]:
        if one["name"] in CHEATERS:
            told = instance.json("verify", "evidence", one["checks"][0]["id"])
            assert (told["outcome"], told["sound"]) == ("failed", True)


def test_evidence_that_cannot_be_kept_saves_nobody_from_quarantine() -> None:
    with make_instance() as instance:
        configure(
            instance,
            executor("trusted", "practice-6", trusted=True),
            executor("smaller", "practice-6", python=cheating(instance, "smaller")),
        )
        instance.home.verification.mkdir()
        (instance.home.verification / "evidence").write_text("no folder")
        done = instance.run("verify", "run", "smaller", "--json")
        assert (done.returncode, done.stderr) == (1, ""), done
        (fault,) = json.loads(done.stdout)["faults"]
        assert "is not kept: " in fault
        (place,) = instance.json("trust")["items"]
        assert place["quarantined_until"] > steady_now() + 3 * 3600


def test_a_failure_is_told_even_if_the_process_died_before_it_could(
    instance: TestInstance,
) -> None:
    configure(
        instance,
        section("verification", lease_s=1),
        executor("trusted", "practice-6", trusted=True),
        executor("honest", "practice-6", place="node:box"),
        executor("smaller", "practice-6", python=cheating(instance, "smaller")),
    )
    found = verify(instance, "smaller", code=1)
    instance.ok("trust", "forget", "local")
    with (
        closing(
            sqlite3.connect(instance.home.verification / "verification.db")
        ) as database,
        database,
    ):
        # As `kill -9` leaves it between the verdict and the instance.
        database.execute("update batches set ended_at = null, outcome = null")
    assert outcomes(verify(instance, "honest")) == {"honest": "passed"}
    (place,) = (
        one for one in instance.json("trust")["items"] if one["place"] == "local"
    )
    assert place["quarantined_until"] > steady_now() + 3 * 3600
    assert "verification of smaller: comparison" in place["reason"]
    assert (
        instance.json("verify", "evidence", found["smaller"]["check"])["outcome"]
        == "failed"
    )


def place(instance: TestInstance) -> dict[str, Any]:
    """The only place of which something is known."""
    (only,) = instance.json("trust")["items"]
    return only


@pytest.mark.timeout(200)
def test_a_quarantine_goes_on_whoever_passes_until_somebody_ends_it() -> None:
    """What else a place is said to be is shown in test_settlement.py."""
    known = (
        executor("trusted", "practice-6", trusted=True),
        executor("honest", "practice-6"),
    )
    with make_instance() as instance:
        smaller = executor(
            "smaller", "practice-6", python=cheating(instance, "smaller")
        )
        configure(instance, *known, smaller)
        assert outcomes(verify(instance, "honest", "smaller", code=1)) == {
            "honest": "passed",
            "smaller": "failed",
        }
        failed = place(instance)["quarantined_until"]
        assert failed, "a place stands as its worst executor"
        configure(instance, *known)
        assert outcomes(verify(instance, "honest")) == {"honest": "passed"}
        assert place(instance)["quarantined_until"] == failed, (
            "neither who else is there frees a place, nor taking an executor out of"
            " the settings or giving it a new name"
        )
        instance.ok("trust", "forget", "local")
        assert outcomes(verify(instance, "honest")) == {"honest": "passed"}
        assert place(instance)["quarantined_until"] is None


@pytest.mark.timeout(200)
def test_words_that_the_instance_would_not_take_save_nobody() -> None:
    with make_instance() as instance:
        configure(
            instance,
            executor("trusted", "practice-6", trusted=True),
            executor("rants", "practice-6", python=cheating(instance, "rants")),
        )
        found = verify(instance, "rants", code=1)
        assert outcomes(found) == {"rants": "failed"}
        (place,) = instance.json("trust")["items"]
        assert (place["place"], place["quarantined_until"] > steady_now()) == (
            "local",
            True,
        )


@pytest.mark.timeout(200)
def test_an_inventory_alone_shows_who_lies_about_the_gpu_or_shares_one(
    instance: TestInstance, fake_gpus: FakeGpus
) -> None:
    fake_gpus.set(uuid(0), name="NVIDIA GeForce GTX 1080", cc="6.1")
    fake_gpus.set(uuid(1), memory_mb=8192)
    python = cheating(instance, "borrows")
    (instance.work / "borrows.memory").write_text(uuid(3))
    configure(
        instance,
        p100("trusted", 8, trusted=True),
        p100("true", 2),
        p100("name", 0),
        p100("memory", 1),
        p100("owner", 3),
        p100("borrows", 4, python=python),
    )
    names = ("true", "name", "memory", "owner", "borrows")
    found = verify(instance, *names, "--claim", "inventory", code=1)
    assert outcomes(found) == {
        **dict.fromkeys(names, "failed"),
        "true": "passed",
    }, found
    assert {name: not_ok(instance, found[name]["check"]) for name in names} == {
        "true": set(),
        "name": {"model", "compute_capability"},
        "memory": {"model", "memory"},
        "owner": {"uuid"},
        "borrows": {"uuid"},
    }
    (shown,) = (
        line
        for line in lines(instance, found["true"]["check"])
        if line["name"] == "uuid"
    )
    assert uuid(2) in shown["reason"], "it has shown its own GPU"


@pytest.mark.timeout(200)
def test_only_the_claims_that_are_asked_for_count(instance: TestInstance) -> None:
    configure(instance, p100("trusted", 8, trusted=True), p100("true", 2))
    asked = ("--claim", "inventory", "--claim", "speed")
    found = verify(instance, "true", *asked, code=1)["true"]
    names = {line["name"] for line in lines(instance, found["check"])}
    assert names & {*INVENTORY, *UNPROVEN, "claims_s"} == {
        *INVENTORY,
        "speed_digest",
        "claims_s",
    }
    assert not_ok(instance, found["check"]) == {"speed_digest"}


@pytest.mark.timeout(300)
def test_who_takes_longer_than_its_class_was_calibrated_for_fails(
    instance: TestInstance,
) -> None:
    """For its answers, or for its claims."""
    memory = {how: instance.work / f"{how}.memory" for how in ("canned", "dawdles")}
    good = cheating(instance, "canned")
    slow = cheating(instance, "dawdles")
    engine = {"options": {"delay_s": 1.2}}
    trusted = p100("trusted", 8, trusted=True, python=good, engine=engine)
    memory["canned"].write_text("1.2")
    configure(instance, trusted)
    add_prompts(instance)
    words = ["calibrate", "--class", "p100", "--trusted", "trusted", "--runs", "5"]
    said = json.loads(instance.ok("verify", *words, "--json", timeout=200))
    assert said["deadline_s"] >= 1.44 and said["claims_s"] >= 1.44
    (row,) = instance.json("verify", "status")["classes"]
    assert row["deadline_s"] == said["deadline_s"]
    memory["canned"].write_text("0")
    memory["dawdles"].write_text(f"{said['claims_s'] + 1}")
    late = {"options": {"delay_s": said["deadline_s"] + 1}}
    configure(
        instance,
        trusted,
        p100("good", 2, python=good),
        p100("slow", 1, python=slow),
        p100("late", 3, python=good, engine=late),
    )
    names = ("good", "slow", "late")
    found = verify(instance, *names, "--claim", "vram", "--claim", "speed", code=1)
    assert outcomes(found) == {
        "good": "passed",
        "slow": "failed",
        "late": "failed",
    }, found
    assert not_ok(instance, found["slow"]["check"]) == {"claims_s"}
    assert "deadline" in found["late"]["reason"] or "in time" in found["late"]["reason"]
    ended = {one["place"]: one["quarantined_until"] for one in trust(instance)}
    gpus = {"good": uuid(2), "slow": uuid(1), "late": uuid(3)}
    shown = quarantines(instance)
    assert {name: shown[name] for name in gpus} == {
        name: ended[f"gpu:{gpu}"] for name, gpu in gpus.items()
    }
    assert shown["late"] and not shown["good"]
    instance.ok("trust", "forget", f"gpu:{uuid(3)}")
    assert quarantines(instance)["late"] is None, "a person has ended it"


def add_prompts(instance: TestInstance) -> None:
    """All series that the class p100 needs: its trusted executor, which is slow, would
    take a minute for them.
    """
    count = TRAITS[GPUClass.P100].prompts
    files: list[str] = []
    for series in range(count):
        prompts = [f"series {series}, prompt {number}?\n" for number in range(count)]
        file = instance.work / f"series-{series}.txt"
        file.write_text("".join(prompts))
        files.append(str(file))
    added = instance.json("verify", "prompts", *files, "--class", "p100")
    assert added["series"] == count


def trust(instance: TestInstance) -> list[dict[str, Any]]:
    """What is known of each place."""
    return instance.json("trust")["items"]


def quarantines(instance: TestInstance) -> dict[str, float | None]:
    """Until when each executor gets no work, as `verify status` shows it."""
    return {
        one["name"]: one["quarantined_until"]
        for one in instance.json("verify", "status")["executors"]
    }


def lines(instance: TestInstance, check: str) -> list[dict[str, Any]]:
    """What the evidence of a check says, line by line."""
    told = instance.json("verify", "evidence", check)
    assert told["sound"]
    return told["lines"]


def not_ok(instance: TestInstance, check: str) -> set[str]:
    """The lines that speak against an executor in the evidence of a check."""
    return {line["name"] for line in lines(instance, check) if line["ok"] is False}
