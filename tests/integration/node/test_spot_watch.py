"""The watcher for notices of a cloud, against a metadata service."""

import asyncio
import json

import pytest

from gpuyard.config.rented import RentedSettings
from gpuyard.domain import wire
from gpuyard.node.spot_watch import SpotWatch, deadline_in
from tests.support.metadata_service import metadata_service
from tests.support.ports import free_port
from tests.support.wait import eventually

AT = 1_900_000_000.0
TIME = "2030-03-17T17:46:40Z"


@pytest.mark.parametrize(
    ("notice", "at"),
    [
        (json.dumps({"action": "terminate", "time": TIME}), AT),
        (json.dumps({"action": "stop", "time": "2030-03-17T17:46:40"}), AT),
        (f"{TIME}\n", AT),
        ("", None),
        ("null", None),
        ("{}", None),
        ('{"time": 5}', None),
        ("{", None),
        ("<html>maintenance</html>", None),
    ],
)
def test_a_notice_is_a_time_or_nothing(notice, at):
    assert deadline_in(notice) == at


async def watched(service_url, cloud, look_at, watch=SpotWatch):
    """What was reported until `look_at(reports)` returned."""
    reports = []
    settings = RentedSettings(spot_notices=cloud, metadata_url=service_url, look_s=0.01)
    watching = asyncio.create_task(watch(settings, reports.append).run())
    try:
        await look_at(reports)
    finally:
        watching.cancel()
    return reports


@pytest.mark.parametrize(
    ("cloud", "notice"),
    [("aws", json.dumps({"action": "terminate", "time": TIME})), ("alibaba", TIME)],
)
def test_a_notice_is_reported_once(tmp_path, cloud, notice):
    with metadata_service(tmp_path / "notice") as service:

        async def look_at(reports):
            await eventually(lambda: len(service.asked) > 3, "it to look")
            assert reports == []
            # As when a token has expired.
            service.tokens.clear()
            (tmp_path / "new").write_text(notice)
            (tmp_path / "new").rename(tmp_path / "notice")
            await eventually(lambda: reports, "a report")
            known = len(service.asked)
            await eventually(lambda: len(service.asked) > known + 3, "it to look on")

        reports = asyncio.run(watched(service.url, cloud, look_at))
    assert reports == [wire.InterruptionSeen(AT)]


def test_a_service_that_does_not_answer_is_asked_again(tmp_path):
    (tmp_path / "notice").write_text(TIME)
    port = free_port()
    asked = []

    async def look_at(reports):
        await eventually(lambda: asked, "it to look")
        assert reports == []
        with metadata_service(tmp_path / "notice", port):
            await eventually(lambda: reports, "a report")

    class Watch(SpotWatch):
        def _notice(self, service):
            asked.append(service)
            return super()._notice(service)

    url = f"http://127.0.0.1:{port}"
    assert asyncio.run(watched(url, "alibaba", look_at, Watch)) == [
        wire.InterruptionSeen(AT)
    ]
