"""`gpuyard secret`, and jobs that refer to secrets by name."""

import json
from collections.abc import Iterator

import pytest

from tests.support.instance import TestInstance, make_instance

VALUE = "planted-secret-value"


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.home.create()
        made.home.settings.write_text(
            '[secrets]\nenvironment = ["GIVEN_TOKEN"]\n'
            'command = ["sh", "-c", "test $0 = IN_VAULT && echo from-$0", "{name}"]\n'
        )
        made.environment["GIVEN_TOKEN"] = "from the environment"
        made.ok("up")
        yield made


def test_a_job_gets_its_secrets_and_nothing_shows_them(instance: TestInstance) -> None:
    instance.ok("secret", "set", "mine", input=f"{VALUE}\n")
    code = 'test "$A $B $C" = "$0" && echo "$A"'
    wanted = f"{VALUE} from the environment from-IN_VAULT"
    secrets = [
        "--secret",
        "A=mine",
        "--secret",
        "B=GIVEN_TOKEN",
        "--secret",
        "C=IN_VAULT",
    ]
    done = instance.run(
        "run", "--name", "user", *secrets, "--", "sh", "-c", code, wanted
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "*" * len(VALUE))
    shown = instance.json("show", "user")
    assert shown["spec"]["secrets"] == {
        "A": "mine",
        "B": "GIVEN_TOKEN",
        "C": "IN_VAULT",
    }
    listed = instance.json("secret", "list")["items"]
    assert [(facts["name"], facts["source"]) for facts in listed] == [
        ("GIVEN_TOKEN", "environment"),
        ("mine", "store"),
    ]
    assert all(facts["used_at"] for facts in listed)
    assert VALUE not in json.dumps(listed) + instance.ok("secret", "list")


def test_a_missing_secret_is_told_when_the_job_is_submitted(
    instance: TestInstance,
) -> None:
    done = instance.run("run", "--secret", "HF_TOKEN=NOPE", "--", "true")
    assert done.returncode == 125
    assert "secrets.HF_TOKEN: there is no secret 'NOPE' (set it first" in done.stderr


def test_a_secret_that_is_gone_at_the_launch_fails_the_job(
    instance: TestInstance,
) -> None:
    instance.ok("secret", "set", "short-lived", input=VALUE)
    go = instance.work / "go"
    before = instance.submit(["sh", "-c", f"until test -e {go}; do sleep 0.05; done"])
    job_id = instance.submit(
        ["true"], secrets={"A": "short-lived"}, depends_on=[before], retry_count=3
    )
    instance.ok("secret", "rm", "short-lived")
    go.touch()
    job = instance.wait(job_id)
    assert (job.state, job.reason) == ("failed", "secret_missing")
    assert len(job.attempts) == 1
    assert "gpuyard secret set short-lived" in job.attempts[0].message


def test_a_key_in_env_is_pointed_to_secrets_and_not_shown(
    instance: TestInstance,
) -> None:
    given = ["--env", f"WANDB_API_KEY={VALUE}", "--env", "EPOCHS=3"]
    done = instance.run("run", "-d", *given, "--", "true")
    assert "note: WANDB_API_KEY looks like a key" in done.stderr
    job_id = done.stdout.strip()
    instance.wait(job_id)
    environment = instance.json("show", job_id)["spec"]["environment"]
    assert (environment["WANDB_API_KEY"], environment["EPOCHS"]) == ("***", "3")


@pytest.mark.parametrize(
    ("name", "body", "fault"),
    [
        ("A", VALUE, "value: is missing or no text"),
        ("A", {"value": [VALUE]}, "value: is missing or no text"),
        ("A", {"value": ""}, "value: has 0 bytes"),
        ("A", {"value": f"{VALUE}\0"}, "value: cannot be the value of a variable"),
        ("-A", {"value": VALUE}, "name: is not the name of a secret"),
    ],
)
def test_a_bad_value_is_told_without_the_value(
    instance: TestInstance, name: str, body: object, fault: str
) -> None:
    import httpx

    address = instance.address()
    answer = httpx.put(
        f"{address.url}/api/v1/secrets/{name}",
        json=body,
        headers={"Authorization": f"Bearer {address.token}"},
        timeout=60,
    )
    assert answer.status_code == 422
    assert fault in answer.text
    assert VALUE not in answer.text
