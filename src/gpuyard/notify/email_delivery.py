"""One attempt to send one e-mail, and what the mail server's answer means.

Imported late, because only this module needs the SMTP client. It is the standard
library's, in threads: of an e-mail now and then, nobody notices the cost of a thread.
"""

import asyncio
import smtplib
import socket
import ssl
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.header import Header
from email.message import Message
from email.mime.text import MIMEText
from email.utils import format_datetime
from functools import cache

from gpuyard.domain.emails import MailSecurity
from gpuyard.notify.delivery_result import DeliveryOutcome, DeliveryResult
from gpuyard.notify.mailbox import Mailbox, MailServer
from gpuyard.notify.payload import Payload

# Mail servers may take their time: some slow down whom they do not know.
TIMEOUT_S = 60.0
# Mail servers count connections, and refuse who opens many.
CONCURRENT = 4
_LONGEST_SUBJECT = 150
_PERMANENT = range(500, 600)


class EmailDelivery:
    """Sends payloads by SMTP, each over a connection of its own, in a few threads."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        # Of their own: a lookup of a name may never end, and must hold up no others.
        self._threads = ThreadPoolExecutor(CONCURRENT, "mail")

    async def deliver(self, mailbox: Mailbox, payload: Payload) -> DeliveryResult:
        """Try once.

        What the server refuses for good is this recipient, or this message; whatever
        else goes wrong is tried again. Errors are named by their class or number only.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, _try, mailbox, payload, self._timeout_s
        )

    async def close(self) -> None:
        """Open no more connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _try(mailbox: Mailbox, payload: Payload, timeout_s: float) -> DeliveryResult:
    """Send it once. Blocks: for each answer of the server, `timeout_s` at most."""
    try:
        with _signed_in(mailbox.server, timeout_s) as client:
            message = compose(mailbox, payload)
            client.send_message(message, mailbox.sender, [mailbox.address])
            # What it says to our goodbye does not matter any more.
            return DeliveryResult(DeliveryOutcome.DELIVERED, "taken")
    except TimeoutError:
        why = f"no answer within {timeout_s:g} s"
    except smtplib.SMTPRecipientsRefused as error:
        code, _ = error.recipients[mailbox.address]
        return _refusal(code, "the recipient")
    except smtplib.SMTPDataError as error:
        return _refusal(error.smtp_code, "the message")
    except smtplib.SMTPResponseException as error:
        why = f"status {error.smtp_code}: {type(error).__name__}"
    except (smtplib.SMTPException, OSError) as error:
        why = type(error).__name__
    return DeliveryResult(DeliveryOutcome.RETRIED, why)


@contextmanager
def _signed_in(server: MailServer, timeout_s: float) -> Generator[smtplib.SMTP]:
    """A connection over which mail may be sent."""
    context = _tls_context(server)
    where = (server.host, server.port, _own_name())
    if server.security is MailSecurity.TLS:
        client = smtplib.SMTP_SSL(*where, timeout=timeout_s, context=context)
    else:
        client = smtplib.SMTP(*where, timeout=timeout_s)
    try:
        if server.security is MailSecurity.STARTTLS:
            client.starttls(context=context)
        if server.user:
            client.login(server.user, server.password)
        yield client
        with suppress(smtplib.SMTPException, OSError):
            client.quit()
    finally:
        client.close()


def compose(mailbox: Mailbox, payload: Payload) -> Message:
    """The e-mail of a payload. Its `Message-ID` is the same each time it is sent.

    What people have named, such as a job, stands in no header but the subject, there
    without line breaks and control characters.
    """
    line = " ".join(_printable(payload.text).split())
    subject = f"[gpuyard] {line}"
    if len(subject) > _LONGEST_SUBJECT:
        subject = subject[: _LONGEST_SUBJECT - 1] + "…"
    at = datetime.fromtimestamp(payload.at, UTC)
    lines = [line, "", f"Event: {payload.kind}", f"Time: {at:%Y-%m-%d %H:%M:%S} UTC"]
    if payload.job_id:
        lines.append(f"Job: {payload.job_id}")
    # Not `EmailMessage`: it can fold some subjects for ever.
    message = MIMEText("\n".join([*lines, ""]), "plain", "utf-8")
    charset = "us-ascii" if subject.isascii() else "utf-8"
    message["Subject"] = Header(subject, charset).encode()
    message["From"] = mailbox.sender
    message["To"] = mailbox.address
    message["Date"] = format_datetime(at)
    message["Message-ID"] = f"<{payload.id}@gpuyard>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Gpuyard-Event"] = payload.kind
    message["X-Gpuyard-Delivery"] = payload.id
    return message


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _refusal(code: int, what: str) -> DeliveryResult:
    why = f"status {code}: {what} was refused"
    if code in _PERMANENT:
        return DeliveryResult(DeliveryOutcome.DROPPED, why)
    return DeliveryResult(DeliveryOutcome.RETRIED, why)


@cache
def _own_name() -> str:
    return socket.gethostname()


@cache
def _tls_context(server: MailServer) -> ssl.SSLContext | None:
    if server.security is MailSecurity.NONE:
        return None
    return ssl.create_default_context(cafile=server.ca_file)
