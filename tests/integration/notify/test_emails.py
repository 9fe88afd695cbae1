"""E-mails by a real mail server: at least once and in order, whatever it answers."""

import json
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.domain.emails import EmailSpec
from gpuyard.domain.webhooks import WebhookFormat
from gpuyard.ledger.ledger import Ledger
from gpuyard.notify.delivery_result import DeliveryOutcome
from gpuyard.notify.email_delivery import EmailDelivery, compose
from gpuyard.notify.mailbox import read_mailboxes
from gpuyard.notify.payload import make_payload
from tests.integration.notify.conftest import KEY, Serve
from tests.support.blank_ledger import blank_ledger
from tests.support.examples import examples
from tests.support.mail_server import HANG, PASSWORD, USER, MailServer, mail_server
from tests.support.tls import make_certificates
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
OPS = "ops@example.org"


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    """SQLite alone: what differs between databases, webhooks show."""
    opened = Ledger.open(blank_ledger(tmp_path / "ledger.db"))
    yield opened
    opened.close()


def spec_for(there: MailServer, *to: str, **more: Any) -> EmailSpec:
    given = {"host": "127.0.0.1", "port": there.port, "tls": "none", **more}
    return EmailSpec.model_validate(
        {**given, "from": "gpuyard@example.org", "to": list(to or [OPS])}
    )


def told(number: int) -> str:
    return f"[gpuyard] Job train-{number} (job_{number}) failed: exit code {number}."


async def test_it_is_sent_encrypted_and_signed_in(serve: Serve, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    certificate = (tmp_path / "server.pem", tmp_path / "server.key")
    with mail_server(certificate=certificate, login=True) as there:
        safe = {"tls": "starttls", "ca_file": tmp_path / "authority.pem"}
        spec = spec_for(there, user=USER, password_env=KEY, **safe)
        async with serve(spec) as serving:
            await serving.happens(1)
            await eventually(lambda: there.taken)
    (message,) = there.taken
    assert there.signed_in == 1
    assert PASSWORD.encode() not in there.raw[0]
    assert message["Subject"] == told(1)
    assert (message["From"], message["To"]) == ("gpuyard@example.org", OPS)
    assert message["X-Gpuyard-Event"] == "job.failed"
    assert message["Message-ID"].startswith("<event_")
    assert "Job: job_1" in message.get_content()


async def test_nothing_is_said_to_a_server_that_proves_nothing(
    serve: Serve, tmp_path: Path
) -> None:
    """Neither one without TLS nor one that nobody has signed gets the password."""
    make_certificates(tmp_path)
    unknown = (tmp_path / "server.pem", tmp_path / "server.key")
    for certificate, why in (
        (None, "SMTPNotSupportedError"),
        (unknown, "SSLCertVerificationError"),
    ):
        with mail_server(certificate=certificate) as there:
            spec = spec_for(there, tls="starttls", user=USER, password_env=KEY)
            async with serve(spec) as serving:
                await serving.happens(1)
                await eventually(
                    lambda serving=serving: serving.notifier.outcomes[
                        DeliveryOutcome.RETRIED
                    ]
                )
                (shown,) = serving.notifier.describe()
            assert not there.taken
            assert PASSWORD not in json.dumps(shown)
            assert shown["failing"] == why


async def test_one_that_is_away_or_slow_gets_all_of_it_in_order_after_kills(
    serve: Serve,
) -> None:
    with mail_server() as there:
        spec = spec_for(there)
        async with serve(spec, killed=True) as serving:
            there.answers = ["451 later"] * 2
            await serving.happens(1, 2)
            await eventually(lambda: there.taken)
    for number in (3, 4):
        async with serve(spec, killed=True) as serving:
            await serving.happens(number)
            await eventually(
                lambda serving=serving: serving.notifier.outcomes[
                    DeliveryOutcome.RETRIED
                ]
            )
    with mail_server(there.port) as back:
        async with serve(spec):
            await eventually(lambda: told(4) in back.subjects())
    subjects = list(dict.fromkeys(there.subjects() + back.subjects()))
    assert subjects == [told(number) for number in (1, 2, 3, 4)]
    ids = {one["Message-ID"] for one in there.taken + back.taken}
    assert len(ids) == 4


async def test_a_recipient_that_is_refused_holds_up_no_other(serve: Serve) -> None:
    with mail_server() as there:
        there.refused = {"gone@example.org": "550 no such user"}
        async with serve(spec_for(there, "gone@example.org", OPS)) as serving:
            await serving.happens(1, 2)
            await eventually(lambda: there.subjects(OPS) == [told(1), told(2)])
            gone, ops = serving.notifier.describe()
            await eventually(
                lambda: serving.notifier.outcomes[DeliveryOutcome.DROPPED] == 2
            )
            gone, ops = serving.notifier.describe()
    assert gone["dead_letters"]["count"] == 2
    assert gone["failing"] == "status 550: the recipient was refused"
    assert ops["dead_letters"]["count"] == 0
    assert there.subjects("gone@example.org") == []


async def test_one_that_never_answers_is_given_up_for_now() -> None:
    with mail_server() as there:
        there.answers = [HANG]
        (mailbox,) = read_mailboxes(spec_for(there), {})
        delivery = EmailDelivery(timeout_s=0.2)
        payload = make_payload(EVENT, JOB, WebhookFormat.JSON)
        result = await delivery.deliver(mailbox, payload)
        assert result.outcome is DeliveryOutcome.RETRIED
        assert result.why == "SMTPServerDisconnected"
        delivery._timeout_s = 60
        result = await delivery.deliver(mailbox, payload)
        assert result.outcome is DeliveryOutcome.DELIVERED
        await delivery.close()


EVENT = {
    "seq": 7,
    "at": 12.5,
    "kind": "job.failed",
    "job_id": "job_1",
    "info": {"reason": "exit_code", "exit_code": 3, "problem": ""},
}
JOB = {"name": "train", "project": "vision"}
EVIL = (
    "x\r\nBcc: all@example.org\r\n\r\nhello",
    "trän\u202e\x00" * 30,
    "\r\n.\r\nMAIL FROM:<x@example.org>",
    "=?utf-8?q?Bcc=3A?=",
)
HEADERS = {
    "Content-Type",
    "MIME-Version",
    "Content-Transfer-Encoding",
    "Subject",
    "From",
    "To",
    "Date",
    "Message-ID",
    "Auto-Submitted",
    "X-Gpuyard-Event",
    "X-Gpuyard-Delivery",
}


@given(st.text(max_size=400) | st.sampled_from(EVIL))
@settings(max_examples=examples(100))
def test_no_name_is_a_header_or_a_second_message(name: str) -> None:
    """Whatever it is, it stands in the subject and the text, on one line."""
    (mailbox,) = read_mailboxes(spec_for(MailServer(25)), {})
    payload = make_payload(EVENT, {**JOB, "name": name}, WebhookFormat.JSON)
    message = message_from_bytes(compose(mailbox, payload).as_bytes(), policy=SMTP)
    assert isinstance(message, EmailMessage)
    subject = str(message["Subject"]).strip()
    assert subject.startswith("[gpuyard] Job")
    assert len(subject) <= 150
    assert set(message.keys()) == HEADERS
    assert message["To"] == OPS
    said, *more = message.get_content().splitlines()
    assert said.startswith("Job") and "failed" in said
    assert more == [
        "",
        "Event: job.failed",
        "Time: 1970-01-01 00:00:12 UTC",
        "Job: job_1",
    ]
