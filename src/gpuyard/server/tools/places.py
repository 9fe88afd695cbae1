"""The address of each port of a job: a host name of its own, which browsers take for a
site of its own.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpuyard.domain.errors import WrongHostError, quoted
from gpuyard.domain.ids import digits_of

_LABEL = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,4})")
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class ToolPlace:
    """A port of a job."""

    job_id: str
    port: int


class ToolAddresses:
    """The addresses below `url`, which the settings have checked: what a job serves at
    a port is at `DIGITS-PORT.HOST`, with the digits of the job's id.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url.lower())
        self.is_secure = parts.scheme == "https"
        self._scheme = parts.scheme
        usual = ":443" if self.is_secure else ":80"
        self._host = parts.netloc.removesuffix(usual)

    def origin(self, place: ToolPlace) -> str:
        """What browsers call the origin of its pages."""
        label = f"{digits_of(place.job_id)}-{place.port}"
        return f"{self._scheme}://{label}.{self._host}"

    def place(self, host: str) -> ToolPlace:
        """What is at the host (the header `Host`); WrongHostError if nothing can be."""
        label, _, rest = host.lower().partition(".")
        usual = ":443" if self.is_secure else ":80"
        found = _LABEL.fullmatch(label)
        if found is None or rest.removesuffix(usual) != self._host:
            raise _wrong(host)
        port = int(found[2])
        if port > _LAST_PORT:
            raise _wrong(host)
        return ToolPlace(f"job_{found[1]}", port)


def _wrong(host: str) -> WrongHostError:
    return WrongHostError(
        f"Nothing is served at {quoted(host)}.",
        "`gpuyard forward JOB PORT --link` prints an address.",
    )
