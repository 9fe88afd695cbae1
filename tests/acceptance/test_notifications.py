"""Webhooks and e-mails through the command: a failed job arrives, signed; killed in
between, the server tells it afterwards.
"""

from collections.abc import Iterator

import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.mail_server import MailServer, mail_server
from tests.support.postgres import PostgresServer
from tests.support.receiver import Receiver, receiver
from tests.support.wait import wait_until
from tests.support.web import http

KEY = "hunter2hunter2"
CONFIG = """
[[notify.webhooks]]
url = "http://user:{key}@127.0.0.1:{port}/hook?token={key}"
events = ["job.failed", "job.completed"]
secret_env = "GPUYARD_HOOK_KEY"
"""
EMAIL = """
[notify.email]
host = "127.0.0.1"
port = {port}
tls = "none"
from = "gpuyard@example.org"
to = "ops@example.org"
events = ["job.failed"]
"""


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    with make_instance(GPUYARD_HOOK_KEY=KEY) as made:
        made.home.create()
        yield made


def configure(instance: TestInstance, there: Receiver, more: str = "") -> None:
    text = CONFIG.format(port=there.port, key=KEY)
    instance.home.settings.write_text(text + more)


def told(there: Receiver) -> dict[str, str]:
    """What it was told last of each job."""
    return {body["job_id"]: body["kind"] for body in there.bodies()}


def mailed(office: MailServer, jobs: list[str]) -> list[str]:
    """Of which of these jobs an e-mail has told, in order."""
    found = [job for one in office.subjects() for job in jobs if f"({job})" in one]
    return list(dict.fromkeys(found))


def counted(instance: TestInstance) -> dict[str, float]:
    """`gpuyard_webhook_deliveries_total` by outcome."""
    with http(instance) as web:
        lines = web.get("/metrics").text.splitlines()
    found = [
        line for line in lines if line.startswith("gpuyard_webhook_deliveries_total{")
    ]
    return {line.split('"')[1]: float(line.split()[-1]) for line in found}


def test_a_job_that_fails_is_told_of_signed_and_no_secret_is_anywhere(
    instance: TestInstance,
):
    with receiver() as there:
        configure(instance, there)
        instance.ok("up")
        failing = instance.submit(["sh", "-c", "exit 3"], name="train")
        seen = instance.submit(["sh", "-c", 'env; test -z "$GPUYARD_HOOK_KEY"'])
        wait_until(
            lambda: told(there) == {failing: "job.failed", seen: "job.completed"},
            what="both to be told",
        )
        first = next(one for one in there.taken if one.body["job_id"] == failing)
        assert first.is_signed_with(KEY)
        assert first.body["text"] == f"Job train ({failing}) failed: exit code 3."
        assert (first.body["data"]["reason"], first.body["data"]["exit_code"]) == (
            "exit_code",
            3,
        )
        wait_until(
            lambda: counted(instance)["delivered"] == 2, what="both to be counted"
        )
        assert KEY not in instance.ok("logs", seen)
    instance.submit(["false"])
    wait_until(
        lambda: counted(instance)["retried"],
        what="a receiver that is gone to be noticed",
    )
    logs = "".join(path.read_text() for path in instance.home.logs.iterdir())
    assert "notify.webhooks.0 at 127.0.0.1" in logs
    for text in (logs, instance.ok("events", "--json"), instance.ok("jobs", "--json")):
        assert KEY not in text


def test_what_the_receiver_missed_comes_after_the_server_was_killed(
    instance: TestInstance,
):
    with receiver() as there, mail_server() as post:
        configure(instance, there, EMAIL.format(port=post.port))
        instance.ok("up")
        first = instance.submit(["false"])
        wait_until(
            lambda: told(there) == {first: "job.failed"}, what="the first to be told"
        )
    missed = []
    # One after the other, for they must end in this order.
    for _ in range(3):
        missed.append(instance.submit(["false"]))
        instance.wait(missed[-1])
    instance.kill("server")
    with receiver(there.port) as back, mail_server(post.port) as office:
        instance.ok("up")
        wait_until(lambda: set(told(back)) >= set(missed), what="the others to be told")
        wait_until(
            lambda: mailed(office, missed) == missed, what="all e-mails, in order"
        )
        seqs = [body["seq"] for body in back.bodies()]
        assert seqs == sorted(seqs)
        last = instance.submit(["true"])
        wait_until(
            lambda: told(back).get(last) == "job.completed", what="the last to be told"
        )


def test_of_two_servers_the_one_that_leads_tells_and_the_next_goes_on(
    postgres: PostgresServer,
):
    address = postgres.ledger()
    more = {"GPUYARD_HOOK_KEY": KEY, "GPUYARD_LEDGER__URL": address}
    with (
        make_instance(**more) as first,
        make_instance(**more) as second,
        receiver() as there,
    ):
        for instance in (first, second):
            instance.home.create()
            configure(instance, there)
            instance.ok("up")
        before = [first.submit(["false"]) for _ in range(3)]
        wait_until(
            lambda: set(told(there)) == set(before), what="the first jobs to be told"
        )
        # So that what comes now is on its way when the leader dies.
        there.answers = [500] * 20
        missed = first.submit(["false"])
        first.wait(missed)
        first.kill("server")
        there.answers.clear()
        wait_until(
            lambda: missed in told(there),
            what="the next leader to tell what was missed",
        )
        assert [body["job_id"] for body in there.bodies()].count(before[0]) == 1
        seqs = list(dict.fromkeys(body["seq"] for body in there.bodies()))
        assert seqs == sorted(seqs)


def test_a_mistake_is_told_at_the_start_and_nothing_is_begun(instance: TestInstance):
    instance.home.settings.write_text(CONFIG.format(port=99999, key=KEY))
    done = instance.run("up")
    assert done.returncode != 0
    assert "notify.webhooks.0.url: is no address of http or https" in done.stderr
    assert KEY not in done.stderr
    instance.home.settings.write_text(CONFIG.format(port=1, key=KEY))
    done = instance.run("up", env={"GPUYARD_HOOK_KEY": ""})
    assert done.returncode != 0
    assert "notify.webhooks.0.secret_env: GPUYARD_HOOK_KEY is not set" in done.stderr


def test_who_is_named_by_a_job_is_told_of_its_end_also_after_a_kill(
    instance: TestInstance,
) -> None:
    with receiver() as there:
        go = instance.work / "go"
        waits = ["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done"]
        url = f"{there.url}?token={KEY}"
        job = instance.ok("run", "-d", "--notify", url, "--", *waits).strip()
        array = ["--array", "0-1", "--notify", f"slack:{url}"]
        instance.ok("run", "-d", *array, "--", "true")
        instance.wait(job, "running")
        instance.kill("server")
        go.touch()
        instance.ok("up")
        wait_until(lambda: len(there.bodies()) == 2, what="both to be told of")
        assert told_alone(there) == {job: "job.completed"}
        shown = instance.ok("show", job, "--json") + instance.ok("events", "--json")
        assert "webhook at 127.0.0.1" in shown
        assert KEY not in shown
        assert KEY not in (instance.home.logs / "server.log").read_text()
    for address, said in (
        ("ftp://example.org", "notify"),
        ("mail:ana@example.org", "this instance sends no e-mails"),
    ):
        refused = instance.run("run", "--notify", address, "--", "true")
        assert refused.returncode == 125, refused.stderr
        assert said in refused.stderr


def told_alone(there: Receiver) -> dict[str, str]:
    """The same of jobs that are no arrays."""
    bodies = [body for body in there.bodies() if "job_id" in body]
    return {body["job_id"]: body["kind"] for body in bodies}
