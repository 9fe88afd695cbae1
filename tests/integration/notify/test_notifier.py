"""Webhooks against a real receiver: at least once and in order, whatever it answers and
whoever is killed.
"""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpuyard.domain.events import Event, EventKind
from gpuyard.domain.health import FAILURES, Health
from gpuyard.domain.webhooks import WebhookSpec
from gpuyard.ledger.ledger import Ledger
from gpuyard.notify.delivery_result import DeliveryOutcome
from gpuyard.notify.journal_pages import PAGE
from gpuyard.notify.notifier import CONCURRENT
from tests.integration.notify.conftest import KEY, SECRET, Serve, event
from tests.support.receiver import HANG, Receiver, receiver
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def numbers(receiver: Receiver) -> list[int]:
    """The jobs that it was told of, in order."""
    return [body["data"]["exit_code"] for body in receiver.bodies()]


def spec_for(receiver: Receiver, **more: Any) -> WebhookSpec:
    return WebhookSpec(url=receiver.url, **more)


async def test_what_matches_arrives_signed_and_nothing_else_does(serve: Serve):
    with receiver() as there:
        async with serve(
            spec_for(there, events=("job.failed",), secret_env=KEY)
        ) as serving:
            await serving.happens(1)
            await serving.happens(2, kind=EventKind.JOB_COMPLETED)
            await serving.happens(3)
            await eventually(
                lambda: serving.notifier.outcomes == {DeliveryOutcome.DELIVERED: 2}
            )
    first = there.taken[0]
    assert numbers(there) == [1, 3]
    assert first.is_signed_with(SECRET) and not first.is_signed_with("another")
    assert first.headers["X-Gpuyard-Event"] == "job.failed"
    assert first.headers["X-Gpuyard-Delivery"] == first.body["id"]
    assert first.body["text"] == "Job train-1 (job_1) failed: exit code 1."
    assert abs(float(first.headers["X-Gpuyard-Timestamp"]) - time.time()) < 60


async def test_each_has_its_own_events_project_and_form(serve: Serve):
    with receiver() as chat, receiver() as vision:
        hooks = (
            spec_for(chat, format="slack", events=("job.completed",)),
            spec_for(vision, project="vision"),
        )
        async with serve(*hooks) as serving:
            await serving.happens(1, project="audio")
            await serving.happens(2)
            await serving.happens(3, kind=EventKind.JOB_COMPLETED)
            await eventually(lambda: chat.taken and vision.taken)
    assert [body["text"] for body in chat.bodies()] == [
        "Job train-3 (job_3) completed: exit code 3."
    ]
    assert numbers(vision) == [2]


async def test_a_commit_that_is_told_late_sends_nothing_twice(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
):
    with receiver() as there:
        async with serve(spec_for(there)) as serving:
            told = serving.notifier.on_commit
            late: list[tuple[int, Sequence[Event]]] = []
            monkeypatch.setattr(
                serving.notifier, "on_commit", lambda *commit: late.append(commit)
            )
            await serving.happens(1, 2)
            told(*late[0])
            await eventually(
                lambda: serving.notifier.describe()[0]["position"] == late[1][0]
            )
            told(*late[1])
            monkeypatch.undo()
            await serving.happens(3)
            await eventually(lambda: 3 in numbers(there))
    assert numbers(there) == [1, 2, 3]


async def test_nothing_is_lost_nor_out_of_order_when_the_server_is_killed_again_and_again(
    serve: Serve,
):
    with receiver() as there:
        hook = spec_for(there)
        async with serve(hook, killed=True):
            pass  # seen once, so its events count from here on
        for round_ in range(5):
            async with serve(hook, killed=True) as serving:
                await serving.happens(*range(round_ * 20, round_ * 20 + 20))
        async with serve(hook):
            await eventually(lambda: 99 in numbers(there))
    assert list(dict.fromkeys(numbers(there))) == list(range(100))
    assert len({body["id"] for body in there.bodies()}) == 100


async def test_a_closed_server_has_its_place_and_tells_nothing_twice(serve: Serve):
    with receiver() as there:
        for round_ in range(3):
            async with serve(spec_for(there)) as serving:
                await serving.happens(round_)
                await eventually(
                    lambda serving=serving: serving.notifier.outcomes[
                        DeliveryOutcome.DELIVERED
                    ]
                )
    assert numbers(there) == [0, 1, 2]


async def test_a_new_webhook_is_told_from_now_on_and_one_taken_out_is_forgotten(
    serve: Serve,
):
    with receiver() as there, receiver() as other:
        async with serve(spec_for(other)) as serving:
            await serving.happens(1)
            await eventually(
                lambda: serving.notifier.outcomes[DeliveryOutcome.DELIVERED]
            )
        async with serve(spec_for(there)) as serving:
            await serving.happens(2)
            await eventually(
                lambda: serving.notifier.outcomes[DeliveryOutcome.DELIVERED]
            )
        async with serve(spec_for(other), spec_for(there)) as serving:
            await serving.happens(3)
            await eventually(
                lambda: serving.notifier.outcomes[DeliveryOutcome.DELIVERED] == 2
            )
    assert numbers(there) == [2, 3]
    assert numbers(other) == [1, 3]


async def test_a_burst_comes_in_order(serve: Serve):
    with receiver() as there:
        async with serve(spec_for(there)) as serving:
            # Of which a listener hears the end.
            serving.writer.add_events([event(number) for number in range(5 * PAGE + 3)])
            await serving.happens(5 * PAGE + 3)
            await eventually(lambda: len(there.taken) > 5 * PAGE + 3)
    assert numbers(there) == list(range(5 * PAGE + 4))


async def test_a_large_commit_is_told_whole(serve: Serve):
    with receiver() as there:
        async with serve(spec_for(there)) as serving:
            await serving.happens(0)
            others = [event(number, EventKind.JOB_COMPLETED) for number in range(1000)]
            # A listener hears only of the others.
            serving.writer.add_events([event(1), *others])
            await serving.writer.committed()
            await eventually(lambda: numbers(there) == [0, 1])


@pytest.mark.parametrize("status", [500, 503, 408, 429])
async def test_one_that_is_not_taken_is_sent_again_with_the_same_id(
    serve: Serve, status: int
):
    with receiver() as there:
        there.answers = [status, status]
        async with serve(spec_for(there, secret_env=KEY)) as serving:
            await serving.happens(1, 2)
            await eventually(
                lambda: (
                    serving.notifier.outcomes
                    == {DeliveryOutcome.RETRIED: 2, DeliveryOutcome.DELIVERED: 2}
                )
            )
    assert numbers(there) == [1, 2]
    assert len({one.headers["X-Gpuyard-Delivery"] for one in there.came[:3]}) == 1
    assert all(one.is_signed_with(SECRET) for one in there.came)


async def test_it_waits_as_long_as_the_receiver_asks(serve: Serve):
    with receiver() as there:
        there.answers = [429]
        there.headers = {"Retry-After": "1"}
        async with serve(spec_for(there)) as serving:
            await serving.happens(1)
            await eventually(lambda: there.taken)
    assert there.came[1].at - there.came[0].at >= 1.0


@pytest.mark.parametrize("status", [400, 404, 410])
async def test_one_that_is_refused_is_dropped_with_a_warning(serve: Serve, status: int):
    with receiver() as there, capture_logs() as logged:
        there.answers = [status]
        async with serve(spec_for(there)) as serving:
            await serving.happens(1, 2)
            await eventually(
                lambda: (
                    serving.notifier.outcomes
                    == {DeliveryOutcome.DROPPED: 1, DeliveryOutcome.DELIVERED: 1}
                )
            )
    assert numbers(there) == [2]
    (warning,) = [entry for entry in logged if entry["log_level"] == "warning"]
    assert warning["why"] == f"status {status}: refused"


async def test_one_that_is_never_taken_is_put_aside_and_later_ones_come_in_order(
    serve: Serve,
):
    with receiver() as there, receiver() as other:
        there.poison = b"train-2"
        async with serve(spec_for(there), spec_for(other), give_up_s=0.01) as serving:
            await serving.happens(1, 2, 3, 4)
            await eventually(lambda: numbers(there) == [1, 3, 4])
            await eventually(lambda: not notified_late(serving))
            seen = serving.notifier.describe()
        assert numbers(other) == [1, 2, 3, 4]
        (letter,) = seen[0]["dead_letters"]["latest"]
        assert (letter["job_id"], letter["why"]) == ("job_2", "status 500")
        assert letter["tries"] >= 5
        assert [hook["dead_letters"]["count"] for hook in seen] == [1, 0]
        assert seen[0]["failing"] is None and seen[0]["behind"] == 0
        async with serve(spec_for(there), spec_for(other)) as serving:
            assert serving.notifier.describe() == seen
            await serving.happens(5)
            await eventually(lambda: numbers(there) == [1, 3, 4, 5])


async def test_hundreds_of_webhooks_share_one_reader_and_a_few_connections(
    serve: Serve, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    reads: list[int] = []
    real = ledger.queries.events_of

    def counted(kinds: Any, seq: int, limit: int) -> Any:
        reads.append(seq)
        return real(kinds, seq, limit)

    monkeypatch.setattr(ledger.queries, "events_of", counted)
    with receiver() as there:
        hooks = [WebhookSpec(url=f"{there.url}/{n}") for n in range(400)]
        async with serve(*hooks) as serving:
            await eventually(lambda: not notified_late(serving))
            reads.clear()
            await serving.happens(1)
            await eventually(lambda: len(there.taken) == 400, within_s=60)
    assert len(reads) < 10
    assert len({one.path for one in there.taken}) == 400
    assert there.most_connections <= 2 * CONCURRENT


def notified_late(serving: Any) -> list[Any]:
    """The webhooks that have not received everything yet."""
    return [state for state in serving.notifier._states if not state.up_to_date]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(serve: Serve, status: int):
    with receiver() as there, receiver() as elsewhere, capture_logs() as logged:
        there.answers = [status]
        there.headers = {"Location": elsewhere.url}
        async with serve(spec_for(there)) as serving:
            await serving.happens(1, 2)
            await eventually(lambda: there.taken)
    assert elsewhere.came == []
    assert [entry["why"] for entry in logged if entry["log_level"] == "warning"] == [
        f"status {status}: a redirect, which is not followed"
    ]


async def test_one_that_hangs_is_given_up_and_holds_up_no_other(serve: Serve):
    with receiver() as slow, receiver() as quick:
        slow.answers = [HANG]
        async with serve(spec_for(slow), spec_for(quick), timeout_s=1.0) as serving:
            began = time.monotonic()
            await serving.happens(1, 2)
            await eventually(lambda: len(quick.taken) == 2)
            assert not slow.taken
            await eventually(lambda: len(slow.taken) == 2)
            assert slow.taken[0].at - began >= 1.0
    assert numbers(slow) == numbers(quick) == [1, 2]


async def test_a_dead_receiver_takes_no_memory_and_is_told_all_when_it_is_back(
    serve: Serve,
):
    with receiver() as there:
        hook = spec_for(there)
        port = there.port
    async with serve(hook) as serving:
        for start in range(0, 1000, 100):
            serving.writer.add_events(
                [event(number) for number in range(start, start + 100)]
            )
            await serving.writer.committed()
        await eventually(lambda: serving.notifier.outcomes[DeliveryOutcome.RETRIED] > 3)
        (state,) = serving.notifier._states
        assert state.seq == 0  # nothing but a place in the journal
        with receiver(port) as there:
            await eventually(lambda: len(there.taken) == 1000, within_s=30)
            assert numbers(there) == list(range(1000))


async def test_what_was_pruned_meanwhile_is_counted(serve: Serve, ledger: Ledger):
    with receiver() as there:
        hook = spec_for(there)
        port = there.port
    with capture_logs() as logged:
        async with serve(hook) as serving:
            await serving.happens(0)
            await eventually(lambda: serving.notifier.outcomes[DeliveryOutcome.RETRIED])
            serving.writer.add_events([event(number) for number in range(1, 100)])
            await ledger_pruned(ledger, serving.writer, 10)
            with receiver(port) as there:
                await eventually(lambda: len(there.taken) == 11)
            # The one that was under way was in hand already; 1 to 89 may be too, as far
            # as its page went.
            told = numbers(there)
    assert told[0] == 0 and told[-10:] == list(range(90, 100))
    (missed,) = [entry["events"] for entry in logged if "pruned" in entry["event"]]
    assert missed == 89 == serving.notifier.outcomes[DeliveryOutcome.PRUNED]


async def ledger_pruned(ledger: Ledger, writer: Any, keep: int) -> None:
    await writer.committed()
    await ledger.prune(writer, keep)
    assert ledger.queries.journal_length() == keep


async def test_one_that_wants_nothing_of_what_happened_has_missed_nothing(
    serve: Serve, ledger: Ledger
):
    """Its place moves on with the journal, so that pruning is no loss."""
    with receiver() as there, capture_logs() as logged:
        async with serve(spec_for(there), killed=True) as serving:
            for start in range(0, 3000, 300):
                serving.writer.add_events(
                    [
                        event(n, EventKind.JOB_COMPLETED)
                        for n in range(start, start + 300)
                    ]
                )
                await serving.writer.committed()
            await ledger_pruned(ledger, serving.writer, 1000)
        async with serve(spec_for(there)) as serving:
            await serving.happens(1)
            await eventually(lambda: there.taken)
            assert not serving.notifier.outcomes[DeliveryOutcome.PRUNED]
    assert [entry for entry in logged if entry["log_level"] == "warning"] == []


async def test_no_log_shows_the_address_or_the_key(serve: Serve):
    with receiver() as there:
        url = f"http://user:{SECRET}@127.0.0.1:{there.port}/{SECRET}?token={SECRET}"
        hook = WebhookSpec(url=url, secret_env=KEY)
        there.answers = [500, 404, 302]
        there.headers = {"Location": f"/{SECRET}"}
        with capture_logs() as logged:
            async with serve(hook) as serving:
                await serving.happens(1, 2, 3)
                await eventually(lambda: there.taken)
    with capture_logs() as logged_later:
        async with serve(hook) as serving:
            await serving.happens(4)
            await eventually(lambda: serving.notifier.outcomes[DeliveryOutcome.RETRIED])
    assert there.taken[0].headers["Authorization"].startswith("Basic ")
    assert there.taken[0].path == f"/{SECRET}?token={SECRET}"
    assert len(logged) >= 3 and logged_later
    assert SECRET not in str(logged) + str(logged_later)


async def test_an_address_that_no_client_takes_is_no_end_of_it(serve: Serve):
    with receiver() as there:
        async with serve(
            WebhookSpec(url="http://-\u00a9-.\u2603/"), spec_for(there)
        ) as serving:
            await serving.happens(1)
            await eventually(lambda: there.taken)
            await eventually(
                lambda: serving.notifier.outcomes[DeliveryOutcome.RETRIED] >= 2
            )


async def test_events_of_no_job_are_told_too(serve: Serve):
    health = Health(0.0)
    events = []
    for n in range(FAILURES + 1):
        kind = health.checked(float(n), "no answer" if n < FAILURES else "")
        if kind:
            events.append(Event(kind, float(n), info=health.data("slurm")))
    with receiver() as there, receiver() as vision:
        async with serve(
            spec_for(there), spec_for(vision, project="vision")
        ) as serving:
            serving.writer.add_events(events)
            await eventually(lambda: len(there.taken) == 2)
    assert [body["text"] for body in there.bodies()] == [
        "Provider slurm is down: no answer.",
        "Provider slurm is up again.",
    ]
    assert there.bodies()[0]["data"] == {
        "provider": "slurm",
        "state": "down",
        "problem": "no answer",
        "since": 2.0,
    }
    assert vision.came == []
