"""Whom to tell when a job ends: addresses as people write them.

No message shows an address of the web, because that may be a secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from gpuyard.domain.emails import mail_address
from gpuyard.domain.webhooks import web_address

MOST_ADDRESSES = 5
_LONGEST = 2000
_SLACK = "slack:"
_MAIL = ("mail:", "mailto:")


class NoticeForm(StrEnum):
    """How somebody is told."""

    WEBHOOK = "webhook"
    SLACK = "slack"
    MAIL = "mail"


@dataclass(frozen=True, slots=True)
class NoticeAddress:
    """One address: a URL, or the address of a mailbox."""

    form: NoticeForm
    target: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> "NoticeAddress":
        """From `https://…`, `slack:https://…` or `mail:ana@example.org`; ValueError."""
        if len(text) > _LONGEST:
            raise ValueError(f"has {len(text)} characters; write {_LONGEST} at most")
        for prefix in _MAIL:
            if text.startswith(prefix):
                address = mail_address(text.removeprefix(prefix))
                return cls(NoticeForm.MAIL, address)
        if text.startswith(_SLACK):
            url = web_address(text.removeprefix(_SLACK))
            return cls(NoticeForm.SLACK, url)
        if "://" not in text:
            raise ValueError(
                "is no address; write https://HOST…, slack:https://HOST… or"
                " mail:ana@example.org"
            )
        return cls(NoticeForm.WEBHOOK, web_address(text))

    @property
    def host(self) -> str:
        """The host of the URL, or the domain of the mailbox."""
        if self.form is NoticeForm.MAIL:
            return self.target.rpartition("@")[2]
        return urlsplit(self.target).hostname or ""

    @property
    def shown(self) -> str:
        """What anybody may see of it."""
        return f"{self.form} at {self.host}"


def _checked(text: str) -> str:
    NoticeAddress.parse(text)
    return text


NoticeAddresses = Annotated[
    tuple[Annotated[str, AfterValidator(_checked)], ...],
    Field(max_length=MOST_ADDRESSES, repr=False),
]
"""Whom to tell when a job ends."""


def without_addresses(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec, with only what anybody may see of the addresses in it."""
    shown = dict(spec)
    addresses = spec.get("notify")
    if addresses:
        shown["notify"] = [NoticeAddress.parse(text).shown for text in addresses]
    return shown
