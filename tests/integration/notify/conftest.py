"""A real ledger, in SQLite and again in PostgreSQL, and what a server does with
webhooks while it leads.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.emails import EmailSpec
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.webhooks import WebhookSpec
from gpuyard.ledger.ledger import Ledger
from gpuyard.notify.delivery import Delivery
from gpuyard.notify.email_delivery import EmailDelivery
from gpuyard.notify.mailbox import read_mailboxes
from gpuyard.notify.notifier import Notifier
from gpuyard.notify.webhook import read_webhooks
from tests.support.blank_ledger import blank_ledger
from tests.support.mail_server import PASSWORD

KEY = "GPUYARD_HOOK_KEY"
SECRET = "hunter2hunter2"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """An empty ledger."""
    remote = request.param == "postgresql"
    opened = Ledger.open(
        request.getfixturevalue("postgres").ledger()
        if remote
        else blank_ledger(tmp_path / "ledger.db")
    )
    yield opened
    opened.close()


class Serving:
    """A server's part: it commits, and its notifier tells."""

    def __init__(
        self,
        ledger: Ledger,
        specs: list[WebhookSpec | EmailSpec],
        timeout_s: float,
        **waits: float,
    ) -> None:
        self.writer = ledger.writer(
            lambda first, events: self.notifier.on_commit(first, events)
        )
        webhooks = [spec for spec in specs if isinstance(spec, WebhookSpec)]
        emails = [spec for spec in specs if isinstance(spec, EmailSpec)]
        receivers = [*read_webhooks(webhooks, {KEY: SECRET})]
        for spec in emails:
            receivers += read_mailboxes(spec, {KEY: PASSWORD})
        deliverer = EmailDelivery(timeout_s) if emails else Delivery(timeout_s)
        self.notifier = Notifier(
            receivers, ledger.queries, self.writer, deliverer, **waits
        )

    async def happens(
        self,
        *numbers: int,
        kind: EventKind = EventKind.JOB_FAILED,
        project: str = "vision",
    ) -> None:
        """Events of jobs of these numbers, each committed by itself."""
        for number in numbers:
            self.writer.add_events([event(number, kind, project)])
            await self.writer.committed()


def event(
    number: int, kind: EventKind = EventKind.JOB_FAILED, project: str = "vision"
) -> Event:
    """An event of job `number`."""
    row: dict[str, Any] = {"name": f"train-{number}", "project": project}
    return Event(
        kind,
        float(number),
        (Change(Table.JOBS, f"job_{number}", row),),
        f"job_{number}",
        {"reason": "exit_code", "exit_code": number},
    )


Serve = Callable[..., AbstractAsyncContextManager[Serving]]


@pytest.fixture
def serve(ledger: Ledger) -> Serve:
    """Serve for a while: closed in the end as a server is, or with `killed=True` as if
    by `kill -9`.
    """

    @asynccontextmanager
    async def serving(
        *specs: WebhookSpec | EmailSpec,
        killed: bool = False,
        timeout_s: float = 10.0,
        give_up_s: float = 3600.0,
    ) -> AsyncIterator[Serving]:
        made = Serving(
            ledger,
            list(specs),
            timeout_s,
            first_wait_s=0.02,
            longest_wait_s=0.1,
            give_up_s=give_up_s,
        )
        made.writer.start()
        await made.notifier.start()
        await made.writer.committed()
        yield made
        if killed:
            made.notifier._save_positions = lambda: None  # nobody saves them
        await made.notifier.close()
        await made.writer.close()

    return serving
