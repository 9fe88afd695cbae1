"""Links to artifacts, by themselves."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpuyard.domain.errors import (
    ForbiddenError,
    LedgerError,
    NotFoundError,
    RefusedError,
)
from gpuyard.server.artifact_links import LINK_PATH, MOST_LINKS, ArtifactLinks

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Notes:
    """What the servers of one instance share."""

    def __init__(self) -> None:
        self.bodies: dict[str, Mapping[str, Any]] = {}
        self.is_down = False

    def note(self, name: str) -> Mapping[str, Any]:
        return self.bodies.get(name, {})

    async def keep(self, name: str, body: Mapping[str, Any]) -> None:
        if self.is_down:
            raise LedgerError("no disk")
        self.bodies[name] = body

    def server(self) -> ArtifactLinks:
        return ArtifactLinks(self.note, self.keep)


async def issue(links: ArtifactLinks, artifact: str, expires_at: float) -> str:
    made = await links.issue(artifact, expires_at, "ana", 0.0)
    url = links.url("https://gpus.example/", artifact, made)
    assert url.startswith(f"https://gpus.example{LINK_PATH}?link=")
    return parse_qs(urlsplit(url).query)["link"][0]


async def test_each_server_of_the_instance_opens_what_another_has_issued() -> None:
    notes = Notes()
    link = await issue(notes.server(), "art_1", 100.0)
    assert notes.server().read(link, 99.0) == "art_1"
    again = await issue(notes.server(), "art_2", 100.0)
    assert notes.server().read(link, 99.0) == "art_1", "the second makes no other key"
    assert notes.server().read(again, 99.0) == "art_2"
    with pytest.raises(ForbiddenError):
        Notes().server().read(link, 1.0)


async def test_with_a_new_key_the_links_of_before_open_nothing() -> None:
    notes = Notes()
    leader = notes.server()
    link = await issue(leader, "art_1", 100.0)
    await leader.end_all()
    for server in (leader, notes.server()):
        assert server.living("art_1", 1.0) == []
        with pytest.raises(ForbiddenError):
            server.read(link, 1.0)
    assert leader.read(await issue(leader, "art_1", 100.0), 1.0) == "art_1"


async def test_one_link_is_ended_and_the_others_live_on() -> None:
    notes = Notes()
    leader = notes.server()
    first = await issue(leader, "art_1", 100.0)
    second = await issue(leader, "art_1", 200.0)
    other = await issue(leader, "art_2", 200.0)
    living = leader.living("art_1", 50.0)
    assert [(one.made_by, one.expires_at) for one in living] == [
        ("ana", 100),
        ("ana", 200),
    ]
    with pytest.raises(NotFoundError):
        await leader.end("art_2", living[0].id, 50.0)
    await leader.end("art_1", living[0].id, 50.0)
    for server in (leader, notes.server()):
        with pytest.raises(ForbiddenError):
            server.read(first, 50.0)
        assert server.read(second, 50.0) == "art_1"
        assert server.read(other, 50.0) == "art_2"
    assert leader.living("art_1", 200.0) == [], "what has expired is not listed"
    with pytest.raises(NotFoundError):
        await leader.end("art_1", living[1].id, 200.0)


async def test_a_link_from_before_there_were_lists_opens_its_file() -> None:
    notes = Notes()
    notes.bodies["artifact_links"] = {"key": "ab" * 32}
    server = notes.server()
    signature = "3788d198d541e28b4fa0dc9e0458acdc264c619242fb8ebc81b24999399ce96f"
    link = f"WyJhcnRfMSIsMTAwXQ.{signature}"
    assert server.read(link, 99.0) == "art_1"
    with pytest.raises(ForbiddenError):
        server.read(link, 100.0)


async def test_only_so_many_links_of_a_file_live() -> None:
    notes = Notes()
    server = notes.server()
    await issue(server, "art_1", 100.0)
    note = dict(notes.bodies["artifact_links:art_1"])
    note["links"] = note["links"] * MOST_LINKS
    notes.bodies["artifact_links:art_1"] = note
    with pytest.raises(RefusedError):
        await issue(server, "art_1", 100.0)
    made = await server.issue("art_1", 300.0, None, 100.0)
    assert server.living("art_1", 100.0) == [made], "those that expired make room"


async def test_nothing_is_signed_with_a_key_that_could_not_be_kept() -> None:
    notes = Notes()
    leader = notes.server()
    notes.is_down = True
    with pytest.raises(LedgerError):
        await issue(leader, "art_1", 100.0)
    notes.is_down = False
    link = await issue(leader, "art_1", 100.0)
    assert notes.server().read(link, 1.0) == "art_1"


async def test_one_error_for_what_was_altered_has_expired_or_is_anothers() -> None:
    links = Notes().server()
    link = await issue(links, "art_1", 100.0)
    content, signature = link.split(".")
    other = (await issue(Notes().server(), "art_2", 1e9)).split(".")[0]
    told: set[str] = set()
    for forged, now in (
        (link, 100.0),
        (f"{other}.{signature}", 1.0),
        (f"{content}.{signature[:-1]}", 1.0),
        (f"{content}.", 1.0),
        (content, 1.0),
        ("", 1.0),
        ("ä.\ud800", 1.0),
    ):
        with pytest.raises(ForbiddenError) as refused:
            links.read(forged, now)
        told.add(str(refused.value))
    assert len(told) == 1
