"""Asks the cloud's metadata service, again and again, whether the cloud takes this
rented machine back, and tells the server.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException

import structlog

from gpuyard.config.rented import RentedSettings
from gpuyard.domain import wire

log = structlog.get_logger(__name__)
_TIMEOUT_S = 2.0
_LARGEST = 1 << 14
_TOKEN_LASTS_S = 21_600
# Never through a proxy: the service is on the machine's own host.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True, slots=True)
class MetadataService:
    """Where a cloud says that it takes a machine back. `header` is the beginning of the
    names of its headers; `token_path` is where it gives a token for its answers.
    """

    url: str
    token_path: str
    header: str
    notice_path: str


SERVICES: Mapping[str, MetadataService] = {
    "aws": MetadataService(
        "http://169.254.169.254",
        "/latest/api/token",
        "X-aws-ec2-metadata-token",
        "/latest/meta-data/spot/instance-action",
    ),
    "alibaba": MetadataService(
        "http://100.100.100.200",
        "/latest/api/token",
        "X-aliyun-ecs-metadata-token",
        "/latest/meta-data/instance/spot/termination-time",
    ),
}


def deadline_in(notice: str) -> float | None:
    """When the machine is taken, in UTC seconds, by a notice of AWS (JSON with `time`)
    or of Alibaba (only the time). None for a text that is no notice.
    """
    text = notice.strip()
    if text.startswith("{"):
        try:
            text = str(json.loads(text)["time"])
        except (ValueError, KeyError, TypeError):
            return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.replace(tzinfo=found.tzinfo or UTC).timestamp()


class SpotWatch:
    """Reports each notice once. `report` queues it for the server."""

    def __init__(
        self,
        settings: RentedSettings,
        report: Callable[[wire.InterruptionSeen], None],
    ) -> None:
        service = SERVICES.get(settings.spot_notices or "")
        self._service = service
        self._url = settings.metadata_url or (service.url if service else "")
        self._look_s = settings.look_s
        self._report = report
        self._token = ""
        self._reported: float | None = None
        self._fault = ""

    async def run(self) -> None:
        """Look for ever; returns at once if there is nothing to watch."""
        if self._service is None:
            return
        while True:
            notice = await asyncio.to_thread(self._notice, self._service)
            at = deadline_in(notice)
            if at is not None and at != self._reported:
                log.warning("the cloud takes this machine back", at=at)
                self._reported = at
                self._report(wire.InterruptionSeen(at))
            await asyncio.sleep(self._look_s)

    def _notice(self, service: MetadataService) -> str:
        """What the service says; empty if there is no notice, or no answer."""
        try:
            found = self._answer(service)
        except (OSError, HTTPException) as error:
            self._note_fault(str(error) or type(error).__name__)
            return ""
        self._note_fault("")
        return found

    def _answer(self, service: MetadataService) -> str:
        """As `_notice`; OSError or HTTPException when the service does not answer."""
        if not self._token:
            self._token = self._new_token(service)
        headers = {service.header: self._token} if self._token else {}
        try:
            return self._ask("GET", service.notice_path, headers)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return ""
            # The token may have expired. The next look asks for a new one.
            self._token = ""
            raise

    def _new_token(self, service: MetadataService) -> str:
        """A token; empty from a service that gives none, and answers without."""
        headers = {f"{service.header}-ttl-seconds": str(_TOKEN_LASTS_S)}
        try:
            return self._ask("PUT", service.token_path, headers).strip()
        except urllib.error.HTTPError:
            return ""

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        asked = urllib.request.Request(
            f"{self._url}{path}", method=method, headers=dict(headers)
        )
        with _open(asked, timeout=_TIMEOUT_S) as answer:
            said: bytes = answer.read(_LARGEST)
        return said.decode(errors="replace")

    def _note_fault(self, fault: str) -> None:
        """Log a fault when it begins, not each time that it is met."""
        if fault and fault != self._fault:
            log.warning("the metadata service does not answer", why=fault)
        self._fault = fault
