"""Precision and recall over the corpus of real logs, against the floors in the corpus
itself.
"""

import tomllib

import pytest

from tests.support.corpus import (
    CORPUS,
    CorpusLog,
    corpus,
    read_points,
    score,
    total,
)

LOGS = corpus()
FLOORS = tomllib.loads((CORPUS.parent / "corpus-floors.toml").read_text())


def part(*, held_out: bool) -> list[CorpusLog]:
    return [log for log in LOGS if log.held_out == held_out]


@pytest.mark.parametrize("name", ["known", "held_out"])
def test_precision_and_recall_stay_above_their_floors(name: str) -> None:
    reached = total(score(log) for log in part(held_out=name == "held_out"))
    assert reached.precision >= FLOORS[name]["precision"]
    assert reached.recall >= FLOORS[name]["recall"]


def test_the_corpus_is_large_and_each_log_says_where_it_is_from() -> None:
    assert len(part(held_out=False)) >= 25
    assert len(part(held_out=True)) >= 5
    for log in LOGS:
        assert log.source.startswith(("https://", "run by us: ")), log.name
        assert log.output.strip(), log.name


@pytest.mark.parametrize("log", part(held_out=False), ids=lambda log: log.name)
def test_no_known_format_is_lost(log: CorpusLog) -> None:
    """A total may hide that one program of many is not read any more."""
    reached = score(log)
    assert reached.recall >= FLOORS["each"]["recall"]
    assert reached.precision >= FLOORS["each"]["precision"]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
@pytest.mark.parametrize("size", [1, 50])
def test_the_chunks_make_no_difference(log: CorpusLog, size: int) -> None:
    whole = read_points(log.output)
    assert read_points(log.output, size) == whole
