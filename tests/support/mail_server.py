"""A real SMTP server, in a thread: it answers as it is told and keeps what came."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope

USER = "gpuyard"
PASSWORD = "hunter2hunter2"
HANG = "hang"


@dataclass
class MailServer:
    """`answers` are what the next messages are answered with, then 250 (`HANG`: with nothing). `refused` are
    recipients, with what they are answered. `signed_in` counts right passwords.
    """

    port: int
    answers: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    taken: list[EmailMessage] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    signed_in: int = 0

    def subjects(self, address: str | None = None) -> list[str]:
        """Of what was taken, in order; for one recipient, or for all."""
        return [
            str(one["Subject"]) for one in self.taken if address in (None, one["To"])
        ]


@contextmanager
def mail_server(
    port: int = 0, certificate: tuple[Path, Path] | None = None, *, login: bool = False
) -> Iterator[MailServer]:
    """A server on `port` (0: a free one), gone afterwards. With `certificate` (and its
    key) it offers STARTTLS; with `login` it takes mail only from who has signed in.
    """
    made = MailServer(port)

    class Handler:
        async def handle_RCPT(  # noqa: N802 - aiosmtpd calls it so
            self, server: Any, session: Any, envelope: Envelope, to: str, options: Any
        ) -> str:
            if to in made.refused:
                return made.refused[to]
            envelope.rcpt_tos.append(to)
            return "250 OK"

        async def handle_DATA(  # noqa: N802 - aiosmtpd calls it so
            self, server: Any, session: Any, envelope: Envelope
        ) -> str:
            answer = made.answers.pop(0) if made.answers else "250 OK"
            if answer == HANG:
                await asyncio.sleep(60)
            if answer.startswith("250"):
                raw = envelope.content
                assert isinstance(raw, bytes)
                message = message_from_bytes(raw, policy=SMTP_POLICY)
                assert isinstance(message, EmailMessage)
                made.raw.append(raw)
                made.taken.append(message)
            return answer

    def authenticate(
        server: Any, session: Any, envelope: Any, mechanism: str, given: Any
    ) -> AuthResult:
        right = (given.login, given.password) == (USER.encode(), PASSWORD.encode())
        made.signed_in += right
        return AuthResult(success=right, handled=False)

    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)

    def protocol() -> SMTP:
        return SMTP(
            Handler(),
            loop=loop,
            tls_context=context,
            require_starttls=context is not None,
            authenticator=authenticate if login else None,
            auth_required=login,
        )

    # Not uvloop: one that is thrown away with connections open spins for ever.
    loop = asyncio.SelectorEventLoop()
    thread = threading.Thread(target=loop.run_forever, name="mail", daemon=True)
    thread.start()
    serving = loop.create_server(protocol, "127.0.0.1", port)
    server = asyncio.run_coroutine_threadsafe(serving, loop).result(10)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _end(server: asyncio.Server) -> None:
    """Listen no more, and break off what is open."""
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
