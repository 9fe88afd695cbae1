"""What clients have found and left: only the newest stay, and fewer files."""

from functools import partial
from typing import Any

import pytest

from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.results import ResultLimits, keep
from gpuyard.ledger.writer import Writer

pytestmark = pytest.mark.anyio
LIMITS = ResultLimits(results=3, files=2)


def row(number: int, kind: str = "study", **values: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "id": f"run_{number}",
        "about": "layouts",
        "project": None,
        "owner": None,
        "recorded_at": float(number),
        "body": {"number": number},
        "file": b"packed",
        **values,
    }


async def test_the_newest_stay_and_fewer_of_their_files(
    ledger: Ledger, writer: Writer
) -> None:
    await writer.maintain(partial(keep, row=row(1, "verification"), limits=LIMITS))
    for number in (1, 2, 3, 4, 5):
        await writer.maintain(partial(keep, row=row(number), limits=LIMITS))
    found = ledger.queries.results("study", 10)
    assert [(one["id"], one["has_file"]) for one in found] == [
        ("run_5", True),
        ("run_4", True),
        ("run_3", False),
    ]
    assert ledger.queries.result_file("study", "run_4") == b"packed"
    assert ledger.queries.result_file("study", "run_3") is None
    assert len(ledger.queries.results("verification", 10)) == 1


async def test_a_later_one_with_the_same_id_replaces_it(
    ledger: Ledger, writer: Writer
) -> None:
    for body in ({"best": "a"}, {"best": "b"}):
        made = row(1, body=body, file=None)
        await writer.maintain(partial(keep, row=made, limits=LIMITS))
    found = ledger.queries.result("study", "run_1")
    assert found
    assert (found["body"], found["has_file"]) == ({"best": "b"}, False)
    assert ledger.queries.results("study", 10, about="another") == []
    assert ledger.queries.results("study", 10, before="run_1") == []
