"""Users and tokens in memory are those of the ledger, whatever fails or comes late."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.controller.users import MOST_TOKENS, OWNER
from gpuyard.domain.errors import DiskFullError, RefusedError
from gpuyard.domain.users import NewToken, NewUser, Role, UserChanges
from tests.support.controlled import Controlled
from tests.support.ledger import failing_commits

pytestmark = pytest.mark.anyio


@pytest.fixture
async def instance(tmp_path: Path) -> AsyncIterator[Controlled]:
    made = Controlled(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def test_what_cannot_be_written_was_never_done(instance: Controlled) -> None:
    users = instance.controller.users
    await users.add(NewUser(name="ana"))
    issued = await users.issue(NewToken(user="ana"), OWNER)
    with failing_commits(instance.ledger.engine):
        for change in (
            users.add(NewUser(name="ben")),
            users.update("ana", UserChanges(role=Role.ADMINISTRATOR)),
            users.issue(NewToken(user="ana"), OWNER),
            users.revoke(issued.id, OWNER),
        ):
            with pytest.raises(DiskFullError):
                await change
    assert [user.name for user in users.listing()] == ["ana"]
    assert [token.id for token in users.tokens_of(None)] == [issued.id]
    identity = users.identify(issued.token)
    assert identity
    assert identity.role is Role.MEMBER


async def test_a_user_has_a_limited_number_of_tokens(instance: Controlled) -> None:
    users = instance.controller.users
    for name in ("ana", "ben"):
        await users.add(NewUser(name=name))
    issued = [
        await users.issue(NewToken(user="ana"), OWNER) for _ in range(MOST_TOKENS)
    ]
    with pytest.raises(RefusedError, match="ana has 100 tokens"):
        await users.issue(NewToken(user="ana"), OWNER)
    await users.issue(NewToken(user="ben"), OWNER)
    await users.revoke(issued[0].id, OWNER)
    await users.issue(NewToken(user="ana"), OWNER)


async def test_an_older_read_brings_no_revoked_token_back(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = instance.controller.users
    await users.add(NewUser(name="ana"))
    issued = await users.issue(NewToken(user="ana"), OWNER)
    # The last that a read of users asks the ledger for.
    note = instance.core.queries.note
    is_read = threading.Event()
    is_revoked = threading.Event()

    def slow(name: str) -> Any:
        is_read.set()
        is_revoked.wait(60)
        return note(name)

    monkeypatch.setattr(instance.core.queries, "note", slow)
    # As a server does that does not lead yet.
    reading = asyncio.create_task(users.read_again())
    await asyncio.to_thread(is_read.wait, 60)
    await users.revoke(issued.id, OWNER)
    is_revoked.set()
    await reading
    assert users.identify(issued.token) is None
