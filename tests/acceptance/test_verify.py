"""Verification end to end, on this machine: what the commands do and say when everybody
is honest, and bad input.
"""

import json
import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from gpuyard.verification.packing import SOLVER
from gpuyard.verification.solver.order import VERSION
from tests.support.instance import TestInstance, make_instance
from tests.support.verifying import configure, executor, outcomes, section, verify
from tests.support.web import http

HONEST = (
    executor("trusted12", "practice-12", trusted=True),
    executor("trusted6", "practice-6", trusted=True),
    executor("stream12", "practice-12"),
    executor("stdin12", "practice-12", stream=False),
    executor("stream6", "practice-6"),
    executor("stdin6", "practice-6", stream=False),
)
NAMES = ("trusted12", "trusted6", "stream12", "stdin12", "stream6", "stdin6")


@pytest.fixture(scope="module")
def checked() -> Iterator[TestInstance]:
    """An instance whose executors were verified twice."""
    with make_instance() as instance:
        configure(instance, *HONEST)
        for _ in range(2):
            found = verify(instance, *NAMES)
            assert outcomes(found) == dict.fromkeys(NAMES, "passed"), found
        yield instance


def rows(instance: TestInstance, statement: str) -> list[dict[str, Any]]:
    """What the instance's own database holds."""
    with sqlite3.connect(instance.home.verification / "verification.db") as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(statement)]


def newest(instance: TestInstance, name: str) -> str:
    """The id of an executor's newest check."""
    (mine,) = [
        one
        for one in instance.json("verify", "status")["executors"]
        if one["name"] == name
    ]
    return mine["checks"][0]["id"]


def test_two_classes_pass_and_another_run_uses_other_samples(
    checked: TestInstance,
) -> None:
    checks = rows(
        checked,
        "select sample_id, batch_id, delivery, executor, outcome, scored, job_id from"
        " checks",
    )
    assert len({check["sample_id"] for check in checks}) == len(checks) == 12
    assert len({check["batch_id"] for check in checks}) == 2
    assert {(check["outcome"], check["scored"]) for check in checks} == {("passed", 1)}
    assert {
        check["delivery"] for check in checks if check["executor"].startswith("stdin")
    } == {"stdin"}
    assert len({check["job_id"] for check in checks}) == 12
    assert {
        job["state"] for job in checked.json("jobs", "--limit", "1000")["items"]
    } == {"completed"}


def test_the_status_shows_classes_and_executors(checked: TestInstance) -> None:
    said = checked.json("verify", "status")
    classes = {one["class"]: one for one in said["classes"]}
    # A class that somebody asked for in vain is shown, too.
    assert {
        name: (one["executors"], one["used"])
        for name, one in classes.items()
        if one["executors"]
    } == {"practice-12": (3, 6), "practice-6": (3, 6)}
    assert {
        one["name"]: [check["outcome"] for check in one["checks"]]
        for one in said["executors"]
    } == dict.fromkeys(NAMES, ["passed"] * 2)
    assert {(one["trust"], one["quarantined_until"]) for one in said["executors"]} == {
        (0.5, None)
    }
    table = checked.ok("verify", "status")
    assert all(name in table for name in (*NAMES, "practice-12", "++"))
    assert 'gpu_class="practice-6"' in checked.ok("verify", "status", "--metrics")
    (place,) = checked.json("trust")["items"]
    assert (place["place"], place["score"], place["quarantined_until"]) == (
        "local",
        1.0,
        None,
    ), "more than a newcomer is trusted counts in full"


@pytest.mark.parametrize("name", ["stream12", "stdin6"])
def test_evidence_is_checked_by_anybody(checked: TestInstance, name: str) -> None:
    check = newest(checked, name)
    file = checked.work / f"{name}.json"
    told = checked.json("verify", "evidence", check, "-o", str(file))
    assert (told["sound"], told["outcome"], told["executor"], told["check"]) == (
        True,
        "passed",
        name,
        check,
    )
    assert json.loads(file.read_text())["body"]["evidence"]["seed"]
    check_what_the_instance_has(checked, check, name, file)
    with make_instance() as stranger:  # who knows nothing of the instance
        known = stranger.json("verify", "check", str(file), "--key", told["key"])
        assert all(line["ok"] for line in known["lines"]), known
        unknown = stranger.json("verify", "check", str(file))
        assert {line["name"] for line in unknown["lines"] if line["ok"] is None} == {
            "signer"
        }
        said = stranger.ok("verify", "check", str(file))
        assert "The file is sound." in said
        assert (
            f"at {datetime.fromtimestamp(known['at'], UTC):%Y-%m-%d %H:%M} UTC" in said
        ), "old evidence looks old"
        assert f"with the seed by {known['delivery']}" in said
        other = stranger.run("verify", "check", str(file), "--key", "00" * 31 + "01")
        assert other.returncode == 1
        assert "another key" in other.stdout
        assert stranger.pid("server") is None, "nobody's help is needed"
        check_changed(stranger, file, told["key"])


@pytest.mark.parametrize("place", ["nowhere/evidence.json", "."])
def test_evidence_that_cannot_be_written_is_one_clear_error(
    checked: TestInstance, place: str
) -> None:
    done = checked.run("verify", "evidence", newest(checked, "stream12"), "-o", place)
    assert (done.returncode, done.stdout) == (2, ""), (done.stdout, done.stderr)
    assert done.stderr.startswith(f"gpuyard: --output: {place} cannot be written: ")
    assert "Traceback" not in done.stderr


def check_what_the_instance_has(
    instance: TestInstance, check: str, name: str, file: Path
) -> None:
    """The verdict that was left there, and the same file."""
    with http(instance) as client:
        path = f"/api/v1/verifications/{check}"
        verdict = client.get(path).json()
        assert (verdict["executor"], verdict["outcome"]) == (name, "passed")
        assert {line["ok"] for line in verdict["lines"]} == {True}
        assert verdict["trust"] == 0.5
        assert client.get(f"{path}/evidence").content == file.read_bytes()
        page = client.get("/api/v1/verifications", params={"executor": name}).json()
        assert [one["outcome"] for one in page["items"]] == ["passed"] * 2


def check_changed(instance: TestInstance, file: Path, key: str) -> None:
    """A file in which anything was changed is not sound."""
    changed = instance.work / "changed.json"
    changed.write_text(file.read_text().replace('"executor":"', '"executor":"not '))
    done = instance.run("verify", "check", str(changed), "--key", key)
    assert (done.returncode, "The file is not sound" in done.stdout) == (1, True), done
    changed.write_text(
        re.sub(r'"released_at":[0-9.]+', '"released_at":1e300', file.read_text())
    )
    done = instance.run("verify", "check", str(changed), "--key", key)
    assert (done.returncode, "The file is not sound" in done.stdout) == (1, True), done
    changed.write_text(file.read_text()[:500])
    done = instance.run("verify", "check", str(changed))
    assert (done.returncode, "is no evidence" in done.stderr) == (2, True), done


BAD_INPUT: list[tuple[list[str], int, str]] = [
    (["run", "stream12", "--class", "a999"], 2, "--class: "),
    (["run", "nobody"], 2, "EXECUTOR: 'nobody' is not in the settings"),
    (
        ["run", "stream12", "stream6", "stream12"],
        2,
        "EXECUTOR: names stream12 twice",
    ),
    (
        ["run", "stream12", "--class", "t4"],
        4,
        "no executor of the class t4 is trusted",
    ),
    (["run", "moon", "--class", "practice-6"], 2, "EXECUTOR: moon is on 'moon'"),
    (["watch", "stream12", "--every", "soon"], 2, "--every: "),
    (["watch", "stream12", "--every", "-5m"], 2, "--every: "),
    (["watch", "stream12", "--every", "0"], 2, "--every: "),
    (["watch", "nobody", "--every", "1m"], 2, "EXECUTOR: 'nobody'"),
    (
        ["run", "stream12", "--claim", "memory"],
        2,
        "--claim: there is no claim 'memory'",
    ),
    (
        ["run", "stream12", "--claim", "all"],
        2,
        "--claim: practice-12 is a class without a GPU",
    ),
    (
        ["watch", "stream12", "--claim", "vram", "--claim", "inventory,speed"],
        2,
        "write inventory, vram, speed or",
    ),
    (
        ["calibrate", "--class", "practice-12", "--trusted", "stream12"],
        2,
        "--trusted: stream12 is not trusted",
    ),
    (
        ["calibrate", "--class", "practice-6", "--trusted", "trusted12"],
        2,
        "--trusted: trusted12 is not trusted",
    ),
    (
        [
            "calibrate",
            "--class",
            "practice-12",
            "--trusted",
            "trusted12",
            "--runs",
            "4",
        ],
        2,
        "--runs",
    ),
    (["calibrate", "--class", "moon", "--trusted", "trusted12"], 2, "--class: "),
    (["evidence", "chk_1"], 3, "no evidence of a check 'chk_1'"),
    (["evidence", ""], 3, "checks. `gpuyard verify status --json`"),
    (
        ["run", "gpu:", "--class", "practice-6"],
        2,
        "EXECUTOR: 'gpu:' names no place",
    ),
    (["status", "--json", "--metrics"], 2, "--metrics: is no JSON"),
    (["receipt", "stream12", "", "--for", "1h"], 2, "JOB: is ''"),
    (["receipt", "stream12", "x" * 513, "--for", "1h"], 2, "JOB: is 'xxx"),
    (
        ["receipt", "moon", "job_1", "--for", "1h"],
        2,
        "EXECUTOR: 'moon' is not in the settings (name one of",
    ),
    (
        ["receipt", "stream12", "job_1", "--for", "0s"],
        2,
        "--for: is 0s (give more than 0",
    ),
    (["check", "nothing.json"], 2, "nothing.json: is no file"),
    (["check", "/dev/zero"], 2, "/dev/zero: is no file"),
]


def test_bad_input_is_one_clear_error_and_nothing_is_half_done(
    checked: TestInstance,
) -> None:
    before = counts(checked)
    for words, code, said in BAD_INPUT:
        done = checked.run("verify", *words)
        assert done.returncode == code, (words, done)
        assert said in done.stderr, words
        assert "Traceback" not in done.stderr, words
    assert counts(checked) == before


def counts(instance: TestInstance) -> dict[str, Any]:
    """How much there is of what a command could leave behind."""
    tables = ("checks", "batches", "samples", "series", "ranges", "executors")
    found = {table: rows(instance, f"select count(*) from {table}") for table in tables}
    return {**found, "jobs": len(instance.json("jobs", "--limit", "1000")["items"])}


WRONG_SETTINGS: list[tuple[list[str], str]] = [
    ([executor("a", "a999")], "verification.executors.a.class: "),
    (
        [
            executor("a", "practice-6", trusted=True),
            executor("b", "practice-6", trusted=True),
        ],
        "trust one of each",
    ),
    ([executor("a", "practice-6", provider="moon")], "a is on 'moon'"),
    ([executor("a", "practice-6", cpus=0)], "verification.executors.a.cpus"),
    (
        [executor("a", "practice-6", engine={"kind": "brain"})],
        "verification.executors.a.engine.kind",
    ),
    (
        [executor("a", "practice-6", tursted=True)],
        "verification.executors.a.tursted",
    ),
    (
        [
            section("verification", database="mysql://x/y"),
            executor("a", "practice-6"),
        ],
        "verification.database",
    ),
    (
        [section("verification", blobs="ftp://x"), executor("a", "practice-6")],
        "verification.blobs: ",
    ),
    (
        [section("verification", host="192.0.2.1"), executor("a", "practice-6")],
        "verification.host: ",
    ),
    (
        [
            section("verification", issuers={"bob": "x"}),
            executor("a", "practice-6"),
        ],
        "verification.issuers.bob: ",
    ),
    (
        [executor("a", "practice-6", place="no where:x")],
        "verification.executors.a.place: ",
    ),
]


def test_wrong_settings_are_named(instance: TestInstance) -> None:
    for sections, said in WRONG_SETTINGS:
        configure(instance, *sections)
        done = instance.run("verify", "run", "a")
        assert done.returncode == 2, (sections, done)
        assert said in done.stderr, sections
        assert "Traceback" not in done.stderr, done.stderr


def test_a_home_that_cannot_be_made_is_one_clear_error(instance: TestInstance) -> None:
    instance.home.create()
    instance.home.verification.write_text("no folder")
    done = instance.run("verify", "status", "--json")
    assert (done.returncode, done.stdout) == (2, ""), (done.stdout, done.stderr)
    assert done.stderr.startswith("gpuyard: GPUYARD_HOME: ")


def test_who_is_honest_passes_however_quick_the_trusted_executor_was(
    instance: TestInstance,
) -> None:
    both = (
        executor("trusted", "practice-6", trusted=True),
        executor("quick", "practice-6"),
    )
    # With tolerance, the work that is measured has fingerprints.
    configure(instance, *both, section("verification.tolerances.practice-6"))
    assert (
        instance.json(
            "verify",
            "calibrate",
            "--class",
            "practice-6",
            "--trusted",
            "trusted",
            "--runs",
            "5",
        )["deadline_s"]
        == 1
    )
    configure(instance, *both)
    found = verify(instance, "quick", "--every-prompt")
    assert outcomes(found) == {"quick": "passed"}
    told = instance.json("verify", "evidence", found["quick"]["check"])
    assert "every_prompt" in {line["name"] for line in told["lines"]}


def test_an_executor_of_another_version_is_judged_by_fingerprints(
    instance: TestInstance,
) -> None:
    """With the mock, which can be of another version; it is measured first."""
    other = {"kind": "mock", "options": {"version": "2", "rounding": 0.02}}
    small = {**other, "model": "small"}
    executors = (
        executor("trusted", "practice-6", trusted=True),
        executor("other", "practice-6", engine=other, stream=False),
        executor("small", "practice-6", engine=small),
    )
    configure(instance, *executors)
    found = verify(instance, "other", code=1)
    assert outcomes(found) == {"other": "other_engine"}
    assert 'set [verification.tolerances."practice-6"]' in found["other"]["reason"]
    allowed = section("verification.tolerances.practice-6")
    configure(instance, *executors, allowed)
    refused = instance.run("verify", "run", "other")
    assert refused.returncode == 4
    assert "calibrate --class practice-6 --against EXECUTOR" in refused.stderr
    calibration = ("calibrate", "--class", "practice-6", "--against", "other")
    limits = instance.json("verify", *calibration, "--runs", "5")["limits"]
    assert 0 < limits["logprobs_all"] < 0.1
    found = verify(instance, "other", "small", code=1)
    assert outcomes(found) == {"other": "passed", "small": "failed"}, found
    shown = instance.json("verify", "evidence", found["other"]["check"])
    (line,) = [one for one in shown["lines"] if one["name"] == "comparison"]
    assert "no more than rounding" in line["reason"]
    upgraded = executor("trusted", "practice-6", trusted=True, engine=other)
    configure(instance, upgraded, *executors[1:], allowed)
    refused = instance.run("verify", "run", "small")
    assert refused.returncode == 4, refused.stdout
    assert (
        "its engine was 'mock' when it was accepted and is 'mock 2'" in refused.stderr
    )
    (row,) = instance.json("verify", "status")["classes"]
    assert "calibrate --class practice-6 --trusted trusted" in row["changed"]


GENERATOR = """
class Generator:
    generator_version = 1
    needs_trusted = False

    async def generate(self, cls, count, series, trusted):
        prompt = "tell" + "tale"
        raise KeyError(count)
"""


def test_a_fault_of_ours_is_logged_without_prompts_and_seeds(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(GENERATOR)
    with make_instance(PYTHONPATH=str(tmp_path)) as instance:
        configure(
            instance,
            section("verification", generator="faulty:Generator"),
            executor("trusted", "practice-6", trusted=True),
            executor("a", "practice-6"),
        )
        done = instance.run("verify", "run", "a")
        assert done.returncode == 4, (done.stdout, done.stderr)
        assert "verification_step_failed" in done.stderr
        assert "telltale" not in done.stderr, "a frame's variables are no part of a log"


def test_the_status_is_shown_where_no_instance_answers(checked: TestInstance) -> None:
    done = checked.run(
        "verify", "status", "--json", env={"GPUYARD_URL": "http://127.0.0.1:9"}
    )
    assert (done.returncode, len(json.loads(done.stdout)["executors"])) == (
        0,
        len(NAMES),
    )
    assert "Quarantines are shown as verification left them" in done.stderr


def other_version(folder: Path) -> str:
    """A solver that reads orders of later versions only; its `solve.py`."""
    copytree(SOLVER, folder)
    order = folder / "order.py"
    order.write_text(order.read_text().replace(f"VERSION = {VERSION}", "VERSION = 99"))
    return str(folder / "solve.py")


@pytest.mark.timeout(200)
def test_a_solver_that_is_there_already_is_used_and_one_of_another_version_is_refused(
    instance: TestInstance,
) -> None:
    there = str(SOLVER / "solve.py")
    newer = other_version(instance.work / "newer")
    configure(
        instance,
        executor("trusted", "practice-6", trusted=True, solver=there),
        executor("there", "practice-6", solver=there),
        executor("newer", "practice-6", solver=newer),
        executor("newer-stdin", "practice-6", solver=newer, stream=False),
        executor("gone", "practice-6", solver="/nowhere/solve.py"),
        executor("trusted12", "practice-12", trusted=True, solver=newer),
    )
    found = verify(instance, "there", "newer", "newer-stdin", "gone", code=1)
    assert outcomes(found) == {
        "there": "passed",
        "newer": "failed",
        "newer-stdin": "failed",
        "gone": "blameless",
    }
    refused = (
        f"version: this solver reads 99, the order has {VERSION}; take the solver that"
        " comes with the gpuyard that asks"
    )
    assert refused in found["newer"]["reason"]
    assert refused in found["newer-stdin"]["reason"]
    assert "/nowhere/solve.py" in found["gone"]["reason"], (
        "this host is ours, so the instance has looked before"
    )
    assert outcomes(verify(instance, "gone", code=1)) == {"gone": "blameless"}
    assert outcomes(verify(instance, "gone", "--allow-unjudged")) == {
        "gone": "blameless"
    }
    done = instance.run("verify", "run", "trusted12")
    assert (done.returncode, refused in done.stderr, "Traceback" in done.stderr) == (
        4,
        True,
        False,
    ), done.stderr
