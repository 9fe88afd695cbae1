"""The reasons of ends: each is known everywhere, and classified once."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.domain.reasons import Blame, Reason, RetryRule

ROOT = Path(__file__).parents[3]
SOURCES = ("controller", "scheduler", "resource_manager", "providers", "node")
WORD = re.compile(r"[a-z]+(_[a-z]+)*")
# Keywords and keys by which the code passes the reason of an end.
NAMES = {"reason", "stopped"}
TABLE = re.compile(r"\| reason \|[^\n]*\n\|[-| ]+\n((?:\|[^\n]*\n)+)", re.IGNORECASE)
PHRASE = re.compile(r"reason(?: is| has)? `([a-z_]+)`")


def named_in(path: Path) -> Iterator[str]:
    """The literal strings that a module uses as reasons."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg in NAMES:
            values = [node.value]
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            values = [
                value
                for key, value in pairs
                if isinstance(key, ast.Constant) and key.value in NAMES
            ]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # attempt.stop("…")
            values = node.args if node.func.attr == "stop" else []
        else:
            continue
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def test_every_reason_that_the_code_gives_exists():
    for room in SOURCES:
        for path in sorted((ROOT / "src/gpuyard" / room).rglob("*.py")):
            words = {word for word in named_in(path) if WORD.fullmatch(word)}
            assert words <= set(Reason), path


def test_every_reason_of_the_runner_and_of_slurm_exists():
    # The runner stands alone and cannot import the enumeration.
    modules = (ROOT / "src/gpuyard/node/runner").glob("*.py")
    runner = "".join(module.read_text() for module in modules)
    given = re.findall(r'errno\.E\w+: "(\w+)"|reason = "(\w+)"', runner)
    words = {word for pair in given for word in pair if word}
    assert {"command_not_found", "workdir_missing"} <= words <= set(Reason)
    from gpuyard.providers.slurm.records import ENDS

    assert {word for word in ENDS.values() if word} <= set(Reason)


def test_every_reason_in_the_documents_exists():
    found: set[str] = set()
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text()
        words = set(PHRASE.findall(text))
        for rows in TABLE.findall(text):
            for row in rows.splitlines():
                words |= set(re.findall(r"`([a-z_]+)`", row.split("|")[1]))
        assert words <= set(Reason), path
        found |= words
    assert Reason.EXIT_STATUS_LOST in found


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_classified(reason):
    assert isinstance(reason.blame, Blame)
    assert isinstance(reason.retry, RetryRule)
    assert reason.sentence.isprintable()
    assert not reason.sentence.endswith(".")
    assert Reason.of(reason.value) is reason


@pytest.mark.parametrize("text", ["", None, "acme_quota_exceeded", "Node Lost"])
def test_an_unknown_reason_counts_as_the_programs(text):
    reason = Reason.of(text)
    assert reason is Reason.OTHER
    assert reason.blame is Blame.PROGRAM
    assert reason.retry is RetryRule.COUNTED
    assert not reason.lost


def test_what_is_lost_is_the_fault_of_the_place():
    assert all(reason.blame is Blame.PLACE for reason in Reason if reason.lost)


def test_what_takes_no_retry_is_no_fault():
    free = {reason for reason in Reason if reason.retry is RetryRule.FREE}
    assert {reason for reason in Reason if reason.blame is Blame.NOBODY} == free
