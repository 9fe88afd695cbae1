"""`gpuyard verify prompts`: files of people's own become what executors are asked, or
one error says what is wrong.
"""

import sqlite3
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"one\ntwo\n", "holds 2 prompts, and not 6"),
        (b"", "holds 0 prompts, and not 6"),
        (b"1\n2\n3\n4\n5\n6\n7\n", "holds 7 prompts, and not 6"),
        (b"1\n2\n3\n4\n5\n2\n", "holds the same prompt in lines 2 and 6"),
        (b"1\n2\n3\n\xff\n5\n6\n", "is not UTF-8 at byte 6 (0xff)"),
        (b"1\n2\n \n4\n5\n6\n", "holds a prompt in line 3 that is empty"),
        (b"1\n2\n3\n4\n5\n" + b"x" * 9000, "9,000 bytes"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_nothing_is_added(
    instance: TestInstance, content: bytes | None, said: str
) -> None:
    bad = instance.work / "bad.txt"
    if content is not None:
        bad.write_bytes(content)
    done = instance.run(
        "verify", "prompts", str(write(instance.work, 1)), str(bad), "--class", CLASS
    )
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert said in done.stderr
    assert str(bad) in done.stderr
    assert instance.json("verify", "status")["classes"] == []


def test_a_file_named_twice_and_a_class_that_is_none(instance: TestInstance) -> None:
    file = str(write(instance.work, 1))
    for words, said in ((["practice-7"], "--class: "), ([CLASS, file], "FILE: ")):
        done = instance.run("verify", "prompts", file, *words[1:], "--class", words[0])
        assert (done.returncode, said in done.stderr) == (2, True), done
