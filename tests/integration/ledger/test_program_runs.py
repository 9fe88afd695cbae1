"""What the ledger knows of the runs of programs."""

from typing import Any

import pytest
import sqlalchemy as sa

from gpuyard.controller.visibility import EVERYTHING, Visibility
from gpuyard.domain.program_needs import ProgramNeeds
from gpuyard.insight.measured_runs import StartedProgram, started_program
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.queries import Queries
from gpuyard.ledger.tables import attempts, specs
from gpuyard.server.measured_needs import needs_of_runs

NEEDS = ProgramNeeds(digest="a" * 64, kind="b" * 64, gpus=1, memory_gb=10)
# Signs that mean something to LIKE, or to JSON.
NAME = 'a_b%"é.py'


def run(number: int, **values: Any) -> dict[str, Any]:
    return {
        "id": f"attempt_{number}",
        "job_id": f"job_{number}",
        "started_at": 100.0,
        "ended_at": 160.0,
        "gpu": "a10g",
        "gpus": 1,
        "usage": {"gpu_memory_mb": 9216.0},
        **values,
    }


def test_runs_of_a_program_are_found_by_its_name_and_by_its_kind(
    ledger: Ledger,
) -> None:
    known = NEEDS.model_dump(mode="json", exclude_defaults=True)
    by_name = {"command": ["python3", NAME], "workdir": "/w"}
    like_it = {"command": ["python3", "aXb.py"], "program_needs": known}
    rows = [
        run(1),
        run(2, owner="ben", project="secret"),
        run(3, ended_at=None),
        run(4, gpus=0),
        run(5, usage=None, reason="gpu_out_of_memory"),
        run(6, usage={"gpu_memory_mb": 1.0}),
    ]
    bodies = [by_name, like_it, by_name, by_name, by_name, {"command": ["x"]}]
    with ledger.engine.begin() as tx:
        for row, body in zip(rows, bodies, strict=True):
            tx.execute(sa.insert(attempts).values(row))
            tx.execute(sa.insert(specs).values(job_id=row["job_id"], body=body))
    program = started_program(["python", f"/w/{NAME}"], None)
    asked = (None, NEEDS, program, None)

    found = needs_of_runs(ledger.queries, EVERYTHING, *asked)
    own = found.own
    assert own is not None
    assert (own.peak_gb, own.job_id, own.runs) == (9.0, "job_1", 1)
    assert (own.failed_on_gb, own.failed_job_id) == (24.0, "job_5")
    assert found.alike is not None
    assert found.alike.memory == 0.9

    hidden = Visibility(hidden=frozenset({"secret"}))
    assert needs_of_runs(ledger.queries, hidden, *asked).alike is None


@pytest.mark.parametrize("path", ["", "x" * 300, "é" * 130])
def test_what_is_no_name_of_a_file_is_not_searched(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    searched: list[str] = []
    read = Queries.runs_with

    def noted(queries: Queries, texts: list[str]) -> list[Any]:
        searched.extend(texts)
        return read(queries, texts)

    monkeypatch.setattr(Queries, "runs_with", noted)
    program = StartedProgram(f"/{path}", ())
    found = needs_of_runs(ledger.queries, EVERYTHING, None, NEEDS, program, None)
    assert found.own is None
    assert searched == [NEEDS.kind, NEEDS.digest]
