"""The reasons of ends: each is known everywhere, and classified once."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.domain.reasons import Blame, Reason, RetryRule

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src/gpuyard"
# Each runs where gpuyard is not installed.
ALONE = (SOURCE / "node/runner",)
# Names, keywords and keys by which the code passes the reason of an end.
NAMES = {"reason", "stopped", "stop_reason"}
REASONS = frozenset(Reason)
LITERAL = re.compile(f'"({"|".join(Reason)})"')
TABLE = re.compile(r"\| reason \|[^\n]*\n\|[-| ]+\n((?:\|[^\n]*\n)+)", re.IGNORECASE)
PHRASE = re.compile(r"reason(?: is| has)? `([a-z_]+)`")


def is_reason(node: ast.AST) -> bool:
    """Whether an expression reads the reason of an end: `reason`, `x.reason`,
    `x["reason"]` or `x.get("reason")`.
    """
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in NAMES
        case ast.Subscript(slice=ast.Constant(value=name)):
            return name in NAMES
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=name)]):
            return name in NAMES
        case _:
            return False


def given_as_reasons(node: ast.AST) -> list[ast.expr]:
    """The expressions that a node passes, stores or compares as reasons."""
    match node:
        case ast.keyword(arg=name, value=value) if name in NAMES:
            return [value]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return [value for key, value in pairs if is_key(key)]
        case ast.Assign(targets=[target], value=value) if is_reason(target):
            return [value]
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            return [value] if is_reason(target) else []
        case ast.Compare(left=left, comparators=others):
            sides = [left, *others]
            return sides if any(is_reason(side) for side in sides) else []
        case ast.Call(func=ast.Attribute(attr="stop"), args=arguments):
            return arguments  # attempt.stop("...")
        case _:
            return []


def is_key(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value in NAMES


def literals_in(path: Path) -> Iterator[str]:
    """Where a module names a reason by a string, with the string."""
    text = path.read_text()
    if not LITERAL.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        for given in given_as_reasons(node):
            for part in ast.walk(given):
                if isinstance(part, ast.Constant) and part.value in REASONS:
                    yield f"{path}:{part.lineno}: {part.value}"


def test_the_code_names_each_reason_by_the_enumeration():
    literals = [
        literal
        for path in SOURCE.rglob("*.py")
        if not set(ALONE) & set(path.parents)
        if "tests" not in path.relative_to(SOURCE).parts
        for literal in literals_in(path)
    ]
    assert literals == []


@pytest.mark.parametrize(
    "line",
    [
        'end(reason="cancelled")',
        'stop = {"reason": "cancelled"}',
        'reason = "cancelled" if asked else why',
        'class Stop:\n    reason: str = "cancelled"',
        'if result.reason == "cancelled": pass',
        'if stop.get("reason") != "cancelled": pass',
        'attempt.stop("cancelled")',
    ],
)
def test_a_reason_that_is_a_string_is_found(line, tmp_path):
    (tmp_path / "line.py").write_text(line)
    assert len(list(literals_in(tmp_path / "line.py"))) == 1


def test_every_reason_of_the_runner_and_of_slurm_exists():
    # The runner stands alone and cannot import the enumeration.
    modules = (ROOT / "src/gpuyard/node/runner").glob("*.py")
    runner = "".join(module.read_text() for module in modules)
    given = re.findall(r'errno\.E\w+: "(\w+)"|reason = "(\w+)"', runner)
    words = {word for pair in given for word in pair if word}
    assert {"command_not_found", "workdir_missing"} <= words <= set(Reason)
    from gpuyard.providers.slurm.records import ENDS

    assert all(isinstance(word, Reason) for word in ENDS.values() if word)


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


@pytest.mark.parametrize(
    ("fact", "reasons"),
    [
        ("ends_job", {"cancelled", "evicted"}),
        ("asks_to_save", {"preempted", "budget"}),
        ("work_goes_on", {"preempted", "revoked", "superseded"}),
        ("never_began", {"revoked", "storage_unreachable"}),
        ("means_stopped", {"timed_out", "cancelled", "preempted", "revoked"}),
        ("ended_by_either_side", {"preempted", "revoked"}),
    ],
)
def test_what_follows_from_a_reason(fact, reasons):
    assert {reason for reason in Reason if getattr(reason, fact)} == reasons
