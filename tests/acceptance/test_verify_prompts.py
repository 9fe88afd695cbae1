"""`gpuyard verify prompts`: files of people's own become what executors are asked, or
one error says what is wrong.
"""

import sqlite3
from pathlib import Path

from tests.support.instance import TestInstance
from tests.support.verifying import configure, executor, outcomes, verify

CLASS = "practice-6"
SIZE = 6


def write(folder: Path, number: int, count: int = SIZE) -> Path:
    """A file of prompts that no other file has."""
    path = folder / f"own-{number}.txt"
    path.write_text(
        "".join(f"Own {number}: why is {place} even?\n" for place in range(count))
    )
    return path


def asked(instance: TestInstance) -> set[str]:
    """The hidden prompts that were drawn."""
    with sqlite3.connect(instance.home.verification / "verification.db") as database:
        return {
            content for (content,) in database.execute("select content from prompts")
        }


def test_executors_are_asked_the_prompts_of_the_files(instance: TestInstance) -> None:
    configure(
        instance, executor("trusted", CLASS, trusted=True), executor("mine", CLASS)
    )
    files = [str(write(instance.work, number)) for number in range(3 * SIZE)]
    assert instance.json("verify", "prompts", *files, "--class", CLASS) == {
        "class": CLASS,
        "series": len(files),
        "left_out": 0,
    }
    again = instance.ok(
        "verify", "prompts", files[0], str(write(instance.work, 99)), "--class", CLASS
    )
    assert "1 series added" in again
    assert "1 left out: there already" in again
    assert outcomes(verify(instance, "mine")) == {"mine": "passed"}
    assert asked(instance)
    assert all(prompt.startswith("Own ") for prompt in asked(instance))


def test_a_file_that_cannot_be_used_is_named_and_nothing_is_added(
    instance: TestInstance,
) -> None:
    """Other faults of files are shown in tests/unit/verification/test_prompts.py."""
    few = instance.work / "few.txt"
    few.write_text("one\ntwo\n")
    sound = str(write(instance.work, 1))
    for bad, said in (
        (few, "holds 2 prompts, and not 6"),
        (instance.work / "none.txt", "No such file"),
    ):
        done = instance.run("verify", "prompts", sound, str(bad), "--class", CLASS)
        assert done.returncode == 2, done
        assert said in done.stderr and str(bad) in done.stderr, done.stderr
    assert instance.json("verify", "status")["classes"] == []


def test_a_file_named_twice_and_a_class_that_is_none(instance: TestInstance) -> None:
    file = str(write(instance.work, 1))
    for words, said in ((["practice-7"], "--class: "), ([CLASS, file], "FILE: ")):
        done = instance.run("verify", "prompts", file, *words[1:], "--class", words[0])
        assert (done.returncode, said in done.stderr) == (2, True), done
