"""What is sent: the body, its sentence, its signature; and what a receiver's
`Retry-After` asks for.
"""

import hashlib
import hmac
import json

import pytest

from gpuyard.domain.webhooks import WebhookFormat, WebhookSpec
from gpuyard.notify.delivery import MAX_RETRY_AFTER_S, retry_after
from gpuyard.notify.payload import headers, make_payload, sentence, signature
from gpuyard.notify.webhook import read_webhooks

EVENT = {
    "seq": 7,
    "at": 12.5,
    "kind": "job.failed",
    "job_id": "job_1",
    "info": {"reason": "exit_code", "exit_code": 3},
}
JOB = {"name": "train", "project": "vision"}


def test_the_body_is_the_event_with_an_id_and_a_sentence():
    payload = make_payload(EVENT, JOB, WebhookFormat.JSON)
    body = json.loads(payload.body)
    assert body == {
        "id": payload.id,
        "seq": 7,
        "at": 12.5,
        "kind": "job.failed",
        "job_id": "job_1",
        "data": EVENT["info"],
        "text": "Job train (job_1) failed: exit code 3.",
    }


def test_an_id_is_the_same_for_the_same_event_and_for_no_other():
    first = make_payload(EVENT, JOB, WebhookFormat.JSON)
    assert first == make_payload(dict(EVENT), {**JOB}, WebhookFormat.JSON)
    assert first.id == make_payload(EVENT, JOB, WebhookFormat.SLACK).id
    others = [{**EVENT, "seq": 8}, {**EVENT, "at": 12.6}, {**EVENT, "job_id": "job_2"}]
    assert (
        len(
            {
                first.id,
                *(make_payload(event, JOB, WebhookFormat.JSON).id for event in others),
            }
        )
        == 4
    )


@pytest.mark.parametrize(
    ("event", "job", "said"),
    [
        (
            {"kind": "job.completed", "info": {"exit_code": 0, "reason": None}},
            JOB,
            "Job train (job_1) completed.",
        ),
        (
            {"kind": "job.failed", "info": {"reason": "out_of_memory"}},
            None,
            "Job job_1 failed: out of memory.",
        ),
        (
            {"kind": "job.timed_out", "info": {"reason": "timed_out"}},
            JOB,
            "Job train (job_1) timed out.",
        ),
        ({"kind": "attempt.sent"}, JOB, "Job train (job_1): attempt.sent."),
        ({"kind": "batch.ended", "job_id": None}, None, "batch.ended."),
        (
            {
                "kind": "provider.down",
                "job_id": None,
                "info": {"provider": "slurm", "problem": "sbatch: no route"},
            },
            None,
            "Provider slurm is down: sbatch: no route.",
        ),
        (
            {
                "kind": "provider.up",
                "job_id": None,
                "info": {"provider": "slurm", "problem": ""},
            },
            None,
            "Provider slurm is up again.",
        ),
        (
            {
                "kind": "schedule.skipped",
                "job_id": None,
                "info": {
                    "schedule": "schedule_1",
                    "name": "nightly",
                    "reason": "overlap",
                    "problem": "the last job, job_1, has not ended",
                },
            },
            None,
            "Schedule nightly (schedule_1) left out a time:"
            " the last job, job_1, has not ended.",
        ),
    ],
)
def test_sentences(event, job, said):
    assert sentence({**EVENT, "info": {}, **event}, job) == said


def test_in_slack_a_name_is_shown_as_it_is_and_calls_on_nobody():
    payload = make_payload(
        EVENT, {**JOB, "name": "<!channel> & *co* @here"}, WebhookFormat.SLACK
    )
    said = "Job &lt;!channel&gt; &amp; *co* @\u200bhere (job_1) failed: exit code 3."
    assert json.loads(payload.body) == {
        "text": said,
        "mrkdwn": False,
        "blocks": [
            {
                "type": "section",
                "text": {"type": "plain_text", "text": said, "emoji": False},
            },
            {
                "type": "context",
                "elements": [
                    {
                        "type": "plain_text",
                        "text": "job.failed · job_1",
                        "emoji": False,
                    }
                ],
            },
        ],
    }


def test_the_signature_is_over_time_and_body():
    payload = make_payload(EVENT, JOB, WebhookFormat.JSON)
    found = headers(payload, b"key", 1_700_000_000.9)
    expected = hmac.new(
        b"key", b"1700000000." + payload.body, hashlib.sha256
    ).hexdigest()
    assert (
        found["X-Gpuyard-Signature"]
        == f"sha256={expected}"
        == signature(b"key", "1700000000", payload.body)
    )
    assert (found["X-Gpuyard-Event"], found["X-Gpuyard-Delivery"]) == (
        "job.failed",
        payload.id,
    )
    assert found["X-Gpuyard-Timestamp"] == "1700000000"


def test_without_a_key_it_is_not_signed():
    assert "X-Gpuyard-Signature" not in headers(
        make_payload(EVENT, JOB, WebhookFormat.JSON), b"", 0.0
    )


def test_with_a_project_only_events_of_its_jobs_are_wanted():
    every, vision = read_webhooks(
        [WebhookSpec(url="http://h"), WebhookSpec(url="http://h", project="vision")], {}
    )
    jobs = [None, JOB, {**JOB, "project": None}, {**JOB, "project": "audio"}]
    assert [every.wants(job) for job in jobs] == [True] * 4
    assert [vision.wants(job) for job in jobs] == [False, True, False, False]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        ("", 0),
        ("soon", 0),
        ("-3", 0),
        ("1e9", 0),
        ("nan", 0),
        ("9" * 400, MAX_RETRY_AFTER_S),
        ("²", 0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
    ],
)
def test_retry_after(text, seconds):
    assert retry_after(text, 1_700_000_000.0) == seconds
