"""Receivers of webhooks that were made to block others, or too many of them."""

import json

from tests.support.instance import make_instance
from tests.support.receiver import receiver
from tests.support.wait import wait_until
from tests.support.web import http

HOOKS = 400


def test_hundreds_of_webhooks_and_a_poisoned_one_hold_up_nobody() -> None:
    """Requests are answered while all are told; what one does not take is shown."""
    with make_instance() as instance, receiver() as there:
        instance.home.create()
        hooks = [
            {"url": f"{there.url}/{n}", "events": ["job.failed"]} for n in range(HOOKS)
        ]
        instance.environment["GPUYARD_NOTIFY__WEBHOOKS"] = json.dumps(hooks)
        instance.ok("up")
        job_id = instance.submit(["false"], name="failing")
        answered = 0
        with http(instance) as web:
            while len(there.taken) < HOOKS:
                assert web.get("/api/v1/jobs").status_code == 200
                answered += 1
            assert answered > 20
            there.poison = b"poison"
            there.poison_status = 410
            instance.submit(["false"], name="poison")
            wait_until(
                lambda: any(
                    hook["dead_letters"]["count"]
                    for hook in web.get("/api/v1/webhooks").json()["items"]
                ),
                what="a letter to be put aside",
            )
        assert {body["job_id"] for body in there.bodies()} == {job_id}
        assert "did not take 1 events" in instance.run("doctor").stdout
