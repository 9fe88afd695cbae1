"""Notifications by e-mail as they are configured: the server that sends them, from whom
and to whom, and the events.
"""

import re
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpuyard.domain.errors import quoted
from gpuyard.domain.events import EventKind
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.webhooks import (
    DEFAULT_EVENTS,
    EventPatterns,
    VariableName,
    kinds_of,
)

# Of an address, what every mail server takes without extensions.
_ADDRESS = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
)
_DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")


class MailSecurity(StrEnum):
    """How a connection to the mail server is encrypted."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


_PORTS = {MailSecurity.STARTTLS: 587, MailSecurity.TLS: 465, MailSecurity.NONE: 25}


def mail_address(text: str) -> str:
    """The address of a mailbox, without a name; ValueError."""
    if not _ADDRESS.fullmatch(text):
        raise ValueError(
            f"{quoted(text)} is no plain address; write one such as ops@example.org"
        )
    return text


def mail_recipient(text: str) -> str:
    """An address or a domain, in small letters; ValueError."""
    is_address = "@" in text
    if not (_ADDRESS if is_address else _DOMAIN).fullmatch(text):
        raise ValueError(
            f"{quoted(text)} is neither an address nor a domain; write one such as"
            " ops@example.org or example.org"
        )
    return text.lower()


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError(
            f"{quoted(text)} is no host; write a name or an address such as"
            " smtp.example.org"
        )
    return text


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _each_once(addresses: tuple[str, ...]) -> tuple[str, ...]:
    if not addresses:
        raise ValueError("is empty; name at least one address, or leave it out")
    return tuple(dict.fromkeys(addresses))


MailAddress = Annotated[str, AfterValidator(mail_address)]


class EmailSpec(StrictModel):
    """Notifications by e-mail. `events` are patterns for kinds of events; `project`:
    only events of that project's jobs. Without `to`, only who is named by a job gets
    e-mails.

    The server signs in as `user`, if that is given, with the password in the
    environment variable `password_env`, such as GPUYARD_SMTP_PASSWORD. `ca_file` has
    the certificates by which the mail server proves itself (unset, those of the
    system).
    """

    host: Annotated[str, AfterValidator(_host)]
    port: int | None = Field(default=None, ge=1, le=65535)
    tls: MailSecurity = MailSecurity.STARTTLS
    ca_file: Path | None = None
    user: str = ""
    password_env: VariableName = ""
    sender: MailAddress = Field(validation_alias="from")
    to: Annotated[
        tuple[MailAddress, ...], BeforeValidator(_several), AfterValidator(_each_once)
    ] = ()
    events: EventPatterns = DEFAULT_EVENTS
    project: str = ""

    @model_validator(mode="after")
    def _signs_in_safely(self) -> Self:
        if bool(self.user) != bool(self.password_env):
            missing = "password_env" if self.user else "user"
            raise ValueError(f"@{missing}@is missing; give user and password_env")
        is_open = self.tls is MailSecurity.NONE
        if self.user and is_open and not _is_this_machine(self.host):
            raise ValueError(
                "@tls@is none, so that all between could read the password; write"
                " starttls or tls"
            )
        return self

    @property
    def kinds(self) -> frozenset[EventKind]:
        """The kinds of events it asks for."""
        return kinds_of(self.events)

    @property
    def the_port(self) -> int:
        """The port; unset, that of `tls`."""
        return self.port or _PORTS[self.tls]


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
