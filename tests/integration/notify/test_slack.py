"""Messages in Slack's format, sent to a fake of Slack that refuses what Slack does."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.events import EventKind
from gpuyard.domain.webhooks import WebhookFormat, WebhookSpec
from gpuyard.notify.delivery_result import DeliveryOutcome
from gpuyard.notify.payload import make_payload
from tests.integration.notify.conftest import Serve
from tests.support.slack import FakeSlack, RefusedError, check_message, fake_slack
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def hook(slack: FakeSlack) -> WebhookSpec:
    return WebhookSpec(url=slack.url, format="slack", events=("job.*", "budget.*"))


async def test_slack_shows_what_has_happened_and_refuses_nothing(serve: Serve):
    with fake_slack() as slack:
        async with serve(hook(slack)) as serving:
            await serving.happens(1)
            await serving.happens(2, kind=EventKind.JOB_COMPLETED)
            await eventually(lambda: len(slack.shown) == 2, "both messages", 60)
    assert slack.refused == []
    assert [each["text"] for each in slack.shown] == [
        "Job train-1 (job_1) failed: exit code 1.",
        "Job train-2 (job_2) completed: exit code 2.",
    ]


async def test_while_slack_is_busy_it_is_left_alone_and_then_gets_all_in_order(
    serve: Serve,
):
    with fake_slack(busy=2, retry_after_s=1) as slack:
        async with serve(hook(slack)) as serving:
            await serving.happens(1, 2, 3)
            outcomes = serving.notifier.outcomes
            await eventually(
                lambda: outcomes[DeliveryOutcome.DELIVERED] == 3, "all messages", 60
            )
    # A wait of its own would be 0.02 s, and there would be many more calls.
    assert slack.calls_while_busy == 2
    assert outcomes[DeliveryOutcome.RETRIED] == 2
    numbers = [re.findall(r"job_(\d)", each["text"]) for each in slack.shown]
    assert numbers == [["1"], ["2"], ["3"]]


async def test_a_channel_that_is_archived_takes_nothing_and_is_not_asked_again(
    serve: Serve,
):
    with fake_slack(gone="channel_is_archived") as slack:
        async with serve(hook(slack)) as serving:
            await serving.happens(1)
            await eventually(
                lambda: serving.notifier.outcomes == {DeliveryOutcome.DROPPED: 1},
                "the refusal",
                60,
            )
    assert slack.shown == []


@given(
    st.sampled_from(list(EventKind)),
    st.text(max_size=4000),
    st.text(max_size=4000),
    st.one_of(st.none(), st.just("job_1")),
)
def test_whatever_people_have_named_slack_shows_it(kind, name, problem, job_id):
    data = {"problem": problem, "budget": name, "gpu": name, "node": name}
    event = {"seq": 1, "at": 1.0, "kind": kind.value, "job_id": job_id, "info": data}
    job = {"name": name, "project": None} if job_id else None
    payload = make_payload(event, job, WebhookFormat.SLACK)
    check_message(msgspec.json.decode(payload.body))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ([], "invalid_payload"),
        ({}, "no_text"),
        ({"text": "a", "channel_id": "x"}, "invalid_payload"),
        ({"text": "<!channel>"}, "invalid_payload"),
        ({"text": "a & b"}, "invalid_payload"),
        ({"text": "a" * 40_001}, "msg_too_long"),
        ({"blocks": [{"type": "section"}]}, "invalid_blocks"),
        ({"blocks": [{"type": "text"}]}, "invalid_blocks"),
        ({"blocks": [{"type": "divider"}] * 51}, "invalid_blocks"),
        ({"blocks": [{"type": "context", "elements": []}]}, "invalid_blocks"),
        (
            {
                "blocks": [
                    {
                        "type": "section",
                        "text": {"type": "plain_text", "text": "a" * 3001},
                    }
                ]
            },
            "invalid_blocks",
        ),
        (
            {
                "blocks": [
                    {
                        "type": "section",
                        "text": {"type": "mrkdwn", "text": "a", "emoji": True},
                    }
                ]
            },
            "invalid_blocks",
        ),
    ],
)
def test_the_fake_refuses_what_slack_does(message, said):
    with pytest.raises(RefusedError, match=said):
        check_message(message)
