"""A configured mailbox: its address, the events it wants, and the server that takes
mail for it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuyard.domain.emails import EmailSpec, MailSecurity
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.events import EventKind
from gpuyard.domain.webhooks import WebhookFormat


@dataclass(frozen=True, slots=True)
class MailServer:
    """A server that sends mail on, and how to sign in there (`user`: empty, not)."""

    host: str
    port: int
    security: MailSecurity
    ca_file: Path | None
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """One receiver of e-mails. Each is told by itself: one that is refused delays no
    other.

    `id` stays the same while its address does, whichever server sends the mail.
    """

    id: str
    label: str
    address: str
    sender: str
    server: MailServer
    kinds: frozenset[EventKind]
    project: str
    # Of the body only the text is used.
    format: WebhookFormat = WebhookFormat.JSON

    def wants(self, job: Mapping[str, Any] | None) -> bool:
        """Whether it wants events of this job (None: of no job)."""
        return not self.project or (job is not None and job["project"] == self.project)


def read_mailboxes(
    spec: EmailSpec | None, environment: Mapping[str, str]
) -> tuple[Mailbox, ...]:
    """The configured mailboxes.

    Raises InvalidInputError when the environment lacks the password, or a file of
    certificates is not there.
    """
    if spec is None:
        return ()
    server = read_mail_server(spec, environment)
    return tuple(
        Mailbox(
            hashlib.sha256(f"mailto:{address}".encode()).hexdigest()[:32],
            f"notify.email to {address} by {spec.host}",
            address,
            spec.sender,
            server,
            spec.kinds,
            spec.project,
        )
        for address in spec.to
    )


def read_mail_server(spec: EmailSpec, environment: Mapping[str, str]) -> MailServer:
    """The server that takes e-mails.

    Raises InvalidInputError when the environment lacks the password, or a file of
    certificates is not there.
    """
    password = environment.get(spec.password_env, "") if spec.password_env else ""
    if spec.password_env and not password:
        raise InvalidInputError.of(
            "notify.email.password_env",
            f"{spec.password_env} is not set",
            "set it where the server is started",
        )
    if spec.ca_file and not spec.ca_file.is_file():
        raise InvalidInputError.of(
            "notify.email.ca_file",
            f"names {spec.ca_file}, which is no file",
            "name a file of certificates in PEM",
        )
    return MailServer(
        spec.host, spec.the_port, spec.tls, spec.ca_file, spec.user, password
    )
