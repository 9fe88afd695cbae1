"""Many who ask for checks and backups of the ledger, and some who do not read."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Never

import pytest
import sqlalchemy as sa
from starlette.types import Message, Scope

from gpuyard.domain.errors import DiskFullError, ServerBusyError
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.replay import LedgerCheck
from gpuyard.server import whole_ledger
from gpuyard.server.whole_ledger import WholeLedger

pytestmark = pytest.mark.anyio


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.db")
    yield opened
    opened.close()


def _full(_engine: sa.Engine, _file: Path) -> Never:
    raise DiskFullError("The disk is full.")


async def receive() -> Message:
    """The client stays."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_who_asks_while_a_check_runs_gets_its_result(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    runs: list[sa.Engine] = []

    def slow_check(engine: sa.Engine) -> LedgerCheck:
        runs.append(engine)
        assert go_on.wait(60)
        return LedgerCheck(events=len(runs))

    monkeypatch.setattr(whole_ledger, "check", slow_check)
    whole = WholeLedger(ledger, tmp_path)
    asking = [asyncio.create_task(whole.check()) for _ in range(100)]
    await asyncio.sleep(0)
    asking.pop().cancel()
    go_on.set()
    reports = await asyncio.gather(*asking)
    assert {report.events for report in reports} == {1}
    assert (await whole.check()).events == 2, "the next one is a new one"


async def test_one_backup_at_a_time_is_downloaded(
    ledger: Ledger, tmp_path: Path
) -> None:
    whole = WholeLedger(ledger, tmp_path)
    download = await whole.download()
    with pytest.raises(ServerBusyError) as refused:
        await whole.download()
    assert refused.value.retry_after
    sent = bytearray()

    async def send(message: Message) -> None:
        sent.extend(message.get("body", b""))

    await download({"type": "http", "method": "POST", "headers": []}, receive, send)
    assert sent.startswith(b"SQLite format 3\0")
    await whole.download()


async def test_a_client_that_does_not_read_gets_no_more(
    ledger: Ledger, tmp_path: Path
) -> None:
    whole = WholeLedger(ledger, tmp_path, stalled_s=0.01)
    aborted: list[bool] = []
    transport = SimpleNamespace(abort=lambda: aborted.append(True))
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "headers": [],
        "gpuyard.connection": SimpleNamespace(transport=transport),
    }

    async def send(_message: Message) -> None:
        await asyncio.Event().wait()

    await (await whole.download())(scope, receive, send)
    assert aborted == [True]
    assert [path.name for path in tmp_path.glob(".backup-download-*")] == []
    await whole.download()


async def test_it_gets_no_more_though_time_is_up_as_the_first_part_is_sent(
    ledger: Ledger, tmp_path: Path
) -> None:
    whole = WholeLedger(ledger, tmp_path, stalled_s=0.005)
    loop = asyncio.get_running_loop()

    async def receive() -> Message:
        # The loop comes late to both: first the time limit, then what sends.
        loop.call_soon(time.sleep, 0.01)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(_message: Message) -> None:
        await asyncio.Event().wait()

    scope: Scope = {"type": "http", "method": "POST", "headers": []}
    # Which of them is first differs from time to time.
    for _ in range(5):
        await (await whole.download())(scope, receive, send)


async def test_a_backup_that_fails_is_not_in_the_way(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = WholeLedger(ledger, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(whole_ledger, "backup", _full)
        with pytest.raises(DiskFullError):
            await whole.download()
    await whole.download()
