"""Users with roles and tokens: what each may do, over HTTP and by the command."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpuyard.client import job_calls
from gpuyard.client.calls import Call
from gpuyard.client.connection import Address
from gpuyard.client.sync import Client
from gpuyard.domain.errors import (
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    UnauthorizedError,
)
from gpuyard.domain.users import Role
from tests.support.command_rights import REQUESTS
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

PAGE = Path(__file__).parents[2] / "docs/guides/users.md"
# These need no token.
OPEN = {
    "/healthz",
    "/shared/artifact",
    "/docs",
    "/openapi.json",
    "/api/v1/server/proof",
    "/api/v1/sign-in",
}
# What is asked for in vain: nothing has this name, and no number is so small.
MADE_UP = "no-such-thing"


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.ok("up")
        for role in ("viewer", "member", "maintainer"):
            made.ok("user", "add", role, "--role", role)
        yield made


def token(instance: TestInstance, user: str, *words: str) -> str:
    """A new token of a user."""
    issued = instance.json("token", "new", "--user", user, *words)
    return str(issued["token"])


def client(instance: TestInstance, user: str, *words: str) -> Client:
    """The SDK as a user."""
    return Client(Address(instance.address().url, token(instance, user, *words)))


def as_user(instance: TestInstance, user: str) -> dict[str, str]:
    """The environment of a command that a user types."""
    url = instance.address().url
    return {"GPUYARD_URL": url, "GPUYARD_TOKEN": token(instance, user)}


def documented() -> Mapping[str, str]:
    """The least role for each request, as the guide says it."""
    rows = re.findall(r"^\| `([A-Z]+ /\S+)` \| (\w+) \|$", PAGE.read_text(), re.M)
    return dict(rows)


def test_the_guide_names_every_request(instance: TestInstance) -> None:
    document = httpx.get(f"{instance.address().url}/openapi.json", timeout=60).json()
    served = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
        if path not in OPEN
    }
    told = {what for what in documented() if not what.startswith("WEBSOCKET")}
    assert told == served


@pytest.mark.parametrize(
    "user", ["nobody", "viewer", "member", "maintainer", "expired"]
)
def test_each_role_may_do_what_the_guide_says(
    instance: TestInstance, user: str
) -> None:
    has_token = user not in ("nobody", "expired")
    headers = {"Content-Type": "application/json"}
    if has_token:
        headers["Authorization"] = f"Bearer {token(instance, user)}"
    elif user == "expired":
        expired = _expired_token(instance)
        headers["Authorization"] = f"Bearer {expired}"
    wrong: list[str] = []
    with httpx.Client(
        base_url=instance.address().url, headers=headers, timeout=60
    ) as web:
        for what, role in documented().items():
            may = has_token and Role(user).includes(Role(role))
            if may and what.startswith("WEBSOCKET"):
                continue  # the streams of jobs have tests of their own
            status = _status(web, what)
            refused = status in (401, 403)
            if refused == may:
                wrong.append(f"{what}: {status}")
    assert not wrong


def _expired_token(instance: TestInstance) -> str:
    """A token of a maintainer whose time is over."""
    issued = token(instance, "maintainer", "--expires", "0.05")
    url = f"{instance.address().url}/api/v1/whoami"
    headers = {"Authorization": f"Bearer {issued}"}
    wait_until(
        lambda: httpx.get(url, headers=headers, timeout=60).status_code == 401,
        what="the token to expire",
    )
    return issued


def _status(web: httpx.Client, what: str) -> int:
    """What is answered to a request about something that is not there."""
    method, path = what.split(" ")
    path = re.sub(r"\{\w+\}", MADE_UP, path.replace("{port}", "1"))
    if method == "WEBSOCKET":
        handshake = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "MDEyMzQ1Njc4OTAxMjM0NQ==",
        }
        return web.get(path, headers=handshake).status_code
    body = None if method in ("GET", "DELETE") else b"{}"
    with web.stream(method, path, content=body) as answer:
        return answer.status_code


# A few commands, of each role above viewer.
SAMPLE = (
    ("run", "--detach", "true"),
    ("hold", MADE_UP),
    ("secret", "rm", MADE_UP),
    ("project", "member", "remove", MADE_UP, MADE_UP),
    ("nodes", "cordon", MADE_UP),
    ("trust", "forget", MADE_UP),
    ("nodes", "invite"),
    ("budgets", "rm", MADE_UP),
)


def test_a_command_is_refused_to_who_may_not_send_its_request(
    instance: TestInstance,
) -> None:
    """`tests/unit/cli/test_command_rights.py` names the request of every command."""
    rights = documented()
    there = as_user(instance, "viewer")
    wrong: list[str] = []
    for words in SAMPLE:
        command = max(
            (each for each in REQUESTS if " ".join(words).startswith(each)), key=len
        )
        refused = instance.run(*words, env=there)
        told = f"this needs {rights[REQUESTS[command]]}"
        if refused.returncode != 4 or told not in refused.stderr:
            wrong.append(f"{command}: {refused.returncode} {refused.stderr}")
    assert not wrong
    assert instance.run("jobs", env=there).returncode == 0


@pytest.mark.parametrize("user", ["viewer", "member", "maintainer"])
def test_nobody_opens_a_stream_to_a_job_of_another(
    instance: TestInstance, open_job: str, user: str
) -> None:
    headers = {"Authorization": f"Bearer {token(instance, user)}"}
    paths = [f"/api/v1/jobs/{open_job}/{to}" for to in ("exec", "stdin", "forward/1")]
    with httpx.Client(
        base_url=instance.address().url, headers=headers, timeout=60
    ) as web:
        found = {path: _status(web, f"WEBSOCKET {path}") for path in paths}
    assert set(found.values()) == {403}, found
    assert instance.job(open_job).state == "running"


@pytest.fixture(scope="module")
def open_job(instance: TestInstance) -> Iterator[str]:
    """A job of the owner that runs and reads what is typed to it."""
    job = instance.submit(["cat"], interactive=True)
    instance.wait(job, "running")
    yield job
    instance.ok("cancel", job)


def test_a_member_changes_only_its_own(instance: TestInstance) -> None:
    theirs = instance.submit(["true"], name="theirs", held=True)
    with client(instance, "member") as member:
        own = member.run(["true"], name="own", held=True)
        assert (own.info.user, instance.job(theirs).user) == ("member", None)
        for change in (
            lambda: member.job(theirs).cancel(),
            lambda: member.job(theirs).hold(),
            lambda: member.cancel_jobs(own.id, theirs),
            lambda: member.job(theirs).update(name="mine"),
        ):
            with pytest.raises(ForbiddenError, match=f"{theirs} was submitted by"):
                change()
        cancelled = member.cancel_jobs(all=True)
        assert own.id in cancelled
        assert theirs not in cancelled
    assert instance.job(theirs).state == "queued"
    with client(instance, "maintainer") as maintainer:
        maintainer.job(theirs).cancel()
    assert instance.job(theirs).state == "cancelled"


def test_no_job_carries_the_environment_of_another_user(instance: TestInstance) -> None:
    digest = instance.job(instance.submit(["true"])).spec["carried_environment"]
    with client(instance, "member") as member:
        own = member.run(["true"])
        spec = member.job(own.id).info.spec
        assert spec
        assert spec["carried_environment"] != digest
        with pytest.raises(InvalidInputError, match="there is no environment"):
            member.run(["true"], carried_environment=digest)
        member.run(["true"], carried_environment=spec["carried_environment"])


def test_no_job_has_the_packages_of_another_user(
    instance: TestInstance, tmp_path: Path
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("some-private-package\n")
    fields = {"packages": str(file), "held": True}
    with instance.client() as owner, client(instance, "member") as member:
        spec = owner.job(owner.run(["true"], **fields).id).info.spec or {}
        mine = member.job(member.run(["true"], **fields).id)
        own = mine.info.spec or {}
        assert own["packages"] != spec["packages"]
        with pytest.raises(InvalidInputError, match="there are no packages"):
            member.run(["true"], packages=spec["packages"])
        with pytest.raises(RefusedError, match=r"list of packages .* of member only"):
            owner.job(mine.id).rerun()


def test_a_rerun_that_is_asked_for_twice_is_one_job(instance: TestInstance) -> None:
    first = instance.submit(["true"], name="first", held=True)
    call = job_calls.rerun(first)
    with instance.client() as owner:
        (again, _) = owner.call(call)
        assert owner.call(call)[0].id == again.id
        assert owner.job(first).rerun()[0].id != again.id


def test_members_set_and_remove_secrets_of_their_own(
    instance: TestInstance,
) -> None:
    instance.ok("user", "add", "neighbour")
    with (
        client(instance, "member") as member,
        client(instance, "neighbour") as neighbour,
        client(instance, "maintainer") as maintainer,
    ):
        assert member.set_secret("key", "of-the-member").owner == "member"
        with pytest.raises(InvalidInputError, match="there is no secret 'key'"):
            neighbour.run(["true"], secrets={"A": "key"})
        assert neighbour.secrets() == []
        with pytest.raises(ForbiddenError, match="only secrets of its own"):
            neighbour.set_secret("key", "of-an-attacker", shared=True)
        with pytest.raises(ForbiddenError, match="only secrets of its own"):
            neighbour.remove_secret("key", owner="member")
        assert maintainer.set_secret("key", "of-all", shared=True).owner is None
        neighbour.run(["true"], secrets={"A": "key"}, held=True)
        member.set_secret("key", "replaced")
        member.remove_secret("key")
        with pytest.raises(NotFoundError, match="no secret of member 'key'"):
            member.remove_secret("key")
        neighbour.set_secret("key", "own")
        rows = instance.ok("secret", "list").splitlines()
        assert [row.split()[:2] for row in rows[1:]] == [
            ["key", "shared"],
            ["key", "neighbour"],
        ]
        maintainer.remove_secret("key", owner="neighbour")
        maintainer.remove_secret("key", shared=True)
    with instance.client() as owner:
        assert owner.secrets() == []


def test_a_token_ends_with_its_time_its_user_and_its_revocation(
    instance: TestInstance,
) -> None:
    added = instance.ok("user", "add", "eve")
    assert f"gpuyard login {instance.address().url}\nOnly this machine has" in added
    as_eve = as_user(instance, "eve")
    assert instance.run("jobs", env=as_eve).returncode == 0
    instance.ok("user", "disable", "eve")
    refused = instance.run("jobs", env=as_eve)
    assert "The user eve is disabled" in refused.stderr
    instance.ok("user", "enable", "eve")
    assert instance.run("jobs", env=as_eve).returncode == 0

    listed = instance.json("token", "list")["items"]
    (used,) = [one for one in listed if one["user"] == "eve" and one["used_at"]]
    instance.ok("token", "revoke", used["id"][-8:])
    refused = instance.run("jobs", env=as_eve)
    assert (refused.returncode, "no valid token" in refused.stderr) == (4, True)

    short = {**as_eve, "GPUYARD_TOKEN": token(instance, "eve", "--expires", "0.05")}
    told = wait_until(
        lambda: instance.run("jobs", env=short).stderr, what="the token to expire"
    )
    assert "The token 'token' of eve has expired" in told


def test_streams_end_with_the_token(instance: TestInstance) -> None:
    issued = instance.json("token", "new", "--user", "viewer")
    headers = {"Authorization": f"Bearer {issued['token']}"}
    url = f"{instance.address().url}/api/v1/events"
    wanted = {**headers, "Accept": "text/event-stream"}
    with httpx.stream("GET", url, headers=wanted, timeout=60) as events:
        lines = events.iter_lines()
        next(lines)
        instance.ok("token", "revoke", issued["id"])
        with pytest.raises(httpx.HTTPError):
            for _ in lines:
                pass


def test_who_has_a_lesser_token_issues_none_that_does_more(
    instance: TestInstance,
) -> None:
    with client(instance, "member", "--role", "viewer", "--expires", "1h") as member:
        me = member.who_am_i()
        assert me.token
        assert (me.user, me.role) == ("member", "viewer")
        issued = member.issue_token(name="next")
        assert issued.role == "viewer"
        assert issued.expires_at == me.token.expires_at
        with pytest.raises(ForbiddenError, match="issues no member's"):
            member.issue_token(role="member")
        with pytest.raises(ForbiddenError, match="for itself only"):
            member.issue_token(user="maintainer")
        assert {one.user for one in member.tokens()} == {"member"}
        worth_more = instance.json("token", "new", "--user", "member")["id"]
        with pytest.raises(NotFoundError):
            member.revoke_token(worth_more)
        # The answer comes, although the next one would not.
        assert member.revoke_token(me.token.id).id == me.token.id
        with pytest.raises(UnauthorizedError):
            member.who_am_i()


def test_a_token_is_replaced_by_one_like_it(
    instance: TestInstance, tmp_path: Path
) -> None:
    words = ("--name", "laptop", "--role", "viewer", "--expires", "1h")
    old = instance.json("token", "new", "--user", "member", *words)
    url = instance.address().url
    there = {"GPUYARD_HOME": str(tmp_path)}
    instance.ok("login", url, "--token", env=there, input=old["token"])
    new = json.loads(instance.ok("token", "rotate", "--json", env=there))
    same = ("user", "name", "role", "kind", "expires_at")
    assert [new[key] for key in same] == [old[key] for key in same]
    # The login has the new one, and the old one is refused.
    assert json.loads(instance.ok("whoami", "--json", env=there))["user"] == "member"
    with Client(Address(url, old["token"])) as late, pytest.raises(UnauthorizedError):
        late.who_am_i()
    again = instance.json("token", "rotate", new["id"][-8:])
    assert again["id"] != new["id"]
    refused = instance.run("whoami", env=there)
    assert "no valid token" in refused.stderr


def test_the_owners_token_is_replaced(instance: TestInstance) -> None:
    before = instance.address()
    with (
        client(instance, "maintainer") as maintainer,
        pytest.raises(ForbiddenError, match="this needs administrator"),
    ):
        maintainer.rotate_owner_token()
    headers = {"Authorization": f"Bearer {before.token}", "Accept": "text/event-stream"}
    url = f"{before.url}/api/v1/events"
    with httpx.stream("GET", url, headers=headers, timeout=60) as events:
        lines = events.iter_lines()
        next(lines)
        assert "is replaced" in instance.ok("token", "rotate")
        instance.submit(["true"], held=True)
        with pytest.raises(httpx.HTTPError):
            for _ in lines:
                pass
    assert instance.json("whoami")["user"] is None
    assert instance.home.token.stat().st_mode & 0o777 == 0o600
    late = Address(before.url, before.token)
    with Client(late) as client_of_old, pytest.raises(UnauthorizedError):
        client_of_old.who_am_i()


def test_a_token_of_the_environment_is_not_replaced() -> None:
    with make_instance(GPUYARD_TOKEN="of-the-environment") as instance:
        instance.ok("up")
        refused = instance.run("token", "rotate")
        assert refused.returncode == 4
        assert "is that of $GPUYARD_TOKEN" in refused.stderr
        assert instance.run("whoami").returncode == 0


def test_schedules_of_who_may_not_submit_wait(instance: TestInstance) -> None:
    instance.ok("user", "add", "gone")
    with client(instance, "gone") as gone:
        schedule = gone.add_schedule(["true"], "@yearly")
    for change in (("disable", "gone"), ("update", "gone", "--role", "viewer")):
        instance.ok("user", *change)
        refused = instance.run("schedule", "run-now", schedule.id)
        assert "The user gone is" in refused.stderr
        instance.ok("user", "enable", "gone")
    instance.ok("user", "update", "gone", "--role", "member")
    instance.ok("schedule", "run-now", schedule.id)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("user", "add", "Bob"), "name: 'Bob' is not the name of a user"),
        (("user", "add", "member"), "There is a user member already"),
        (("user", "add", "x", "--role", "king"), "role: is 'king' (must be 'viewer'"),
        (("user", "update", "nobody", "--role", "member"), "There is no user 'nobody'"),
        (("token", "new"), "user: is missing"),
        (("token", "new", "--user", "nobody"), "There is no user 'nobody'"),
        (("token", "new", "--user", "member", "--expires", "soon"), "expires: "),
        (
            ("token", "new", "--user", "viewer", "--role", "member"),
            "role: is member, and viewer is a viewer",
        ),
        (("token", "revoke", "token_"), "There is no token 'token_'"),
        (("token", "revoke", "a"), "There is no token 'a'"),
        (("login", "gpu.example.org"), "URL: is 'gpu.example.org'"),
    ],
)
def test_bad_input_is_told(
    instance: TestInstance, words: tuple[str, ...], fault: str
) -> None:
    done = instance.run(*words)
    assert done.returncode != 0
    assert fault in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("budgets", "set", "anas", "--amount", "5"),
        (
            "reservations",
            "add",
            "--gpus",
            "1",
            "--from",
            "2999-01-01",
            "--to",
            "2999-02-01",
        ),
    ],
)
def test_nothing_is_set_aside_for_who_is_unknown(
    instance: TestInstance, words: tuple[str, ...]
) -> None:
    done = instance.run(*words, "--user", "an")
    assert (done.returncode, "There is no user 'an'" in done.stderr) == (3, True)


def test_login_is_kept_until_logout(instance: TestInstance, tmp_path: Path) -> None:
    url = instance.address().url
    there = {"GPUYARD_HOME": str(tmp_path / "home")}
    secret = token(instance, "member")
    refused = instance.run(
        "login", url, input="wrong-token-of-20-characters\n", env=there
    )
    assert f"token: is not accepted by {url}" in refused.stderr
    assert not (tmp_path / "home/login.json").exists()
    said = instance.ok("login", url, input=f"{secret}\n", env=there)
    assert "You are member (member)" in said
    kept = tmp_path / "home/login.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    me = json.loads(instance.ok("whoami", "--json", env=there))
    assert (me["user"], me["role"]) == ("member", "member")
    stays = instance.run("down", env=there)
    assert f"You are signed in to {url}" in stays.stderr
    kept.write_text("{")
    assert "gpuyard login` again" in instance.run("jobs", env=there).stderr
    assert "signed out" in instance.ok("logout", env=there)
    assert not kept.exists()
    instance.ok("login", url, input=f"{secret}\n", env=there)
    stays = instance.run("logout", env=there)
    assert "The token that you gave stays good" in stays.stderr
    instance.ok("login", url, input=f"{secret}\n", env=there)
    assert instance.run("logout", "--revoke", env=there).stderr == ""
    with pytest.raises(UnauthorizedError):
        Client(Address(url, secret)).who_am_i()


def test_no_token_is_kept_and_the_audit_log_names_users(
    instance: TestInstance,
) -> None:
    secret = token(instance, "maintainer")
    with (
        Client(Address(instance.address().url, secret)) as maintainer,
        pytest.raises(ForbiddenError, match="this needs administrator"),
    ):
        maintainer.add_user("friend")
    instance.run("token", "revoke", secret)
    grep = ["grep", "-rlF", secret, str(instance.home.root)]
    assert subprocess.run(grep, capture_output=True, check=False).returncode == 1
    lines = map(json.loads, instance.home.audit_log.read_text().splitlines())
    refused: list[Any] = [line for line in lines if line["event"] == "refused"]
    assert ("maintainer", "forbidden") in {
        (line["who"], line["outcome"]) for line in refused
    }


def test_users_outlive_a_killed_server(instance: TestInstance) -> None:
    as_member = as_user(instance, "member")
    instance.kill("server")
    instance.ok("up")
    as_member["GPUYARD_URL"] = instance.address().url
    me = json.loads(instance.ok("whoami", "--json", env=as_member))
    assert me["user"] == "member"
    instance.ok("ledger", "check")


def newest_events(of: Client) -> str:
    """The newest events as somebody sees them, as JSON."""
    call: Call[Any] = Call("GET", "/api/v1/events?newest=true", lambda answer: answer)
    return json.dumps(of.call(call))


def test_others_see_neither_tokens_nor_who_is_awaited(instance: TestInstance) -> None:
    instance.ok("user", "add", "late", "--sign-in")
    instance.ok("user", "update", "late", "--no-sign-in")
    instance.ok("user", "update", "late", "--sign-in")
    with client(instance, "member", "--name", "own-laptop") as member:
        token(instance, "viewer", "--name", "hush-laptop")
        (late,) = (user for user in member.users() if user.name == "late")
        seen = newest_events(member)
    with instance.client() as owner:
        assert "hush-laptop" in newest_events(owner)
    assert not late.awaits_sign_in
    assert "own-laptop" in seen
    assert "hush-laptop" not in seen
    assert "awaits_sign_in" not in seen


def acting(instance: TestInstance, secret: str, user: str) -> Client:
    """The SDK as whoever has this token, who acts for a user."""
    return Client(Address(instance.address().url, secret, acts_for=user))


def test_an_administrator_acts_for_a_user(instance: TestInstance) -> None:
    secret = instance.json("user", "add", "boss", "--role", "administrator")["token"]
    there = {"GPUYARD_URL": instance.address().url, "GPUYARD_TOKEN": secret}
    words = ("--as", "member", "run", "--detach", "--hold", "--name", "given", "true")
    instance.ok(*words, env=there)
    with acting(instance, secret, "member") as boss:
        job = boss.job("given")
        assert (job.info.user, boss.who_am_i().role) == ("member", Role.MEMBER)
        # It may what the user may, and no more.
        with pytest.raises(ForbiddenError, match="The role of member here is member"):
            boss.update_user("viewer", role="member")
        with pytest.raises(ForbiddenError, match="while acting for another user"):
            boss.issue_token()
        with pytest.raises(ForbiddenError, match="while acting for another user"):
            boss.rotate_owner_token()
    with (
        Client(Address(instance.address().url, secret)) as boss,
        pytest.raises(ForbiddenError, match="Only the owner of the instance"),
    ):
        boss.rotate_owner_token()
    with client(instance, "member") as member:
        member.job(job.id).cancel()
    lines = instance.json("audit", "-n", "200")["items"]
    submitted = [line for line in lines if line["what"] == "POST /api/v1/jobs"]
    assert [(line["who"], line["for"]) for line in submitted] == [("boss", "member")]
    rows = [line.split() for line in instance.ok("audit", "-n", "200").splitlines()]
    row = next(row for row in rows if "boss" in row and "/api/v1/jobs" in row)
    assert "member" in row


@pytest.mark.parametrize(
    ("sender", "user", "error", "fault"),
    [
        ("maintainer", "member", ForbiddenError, "Only administrators act for others"),
        ("member", "member", ForbiddenError, "Only administrators act for others"),
        (None, "nobody-here", NotFoundError, "There is no user 'nobody-here'"),
        (None, "owner", InvalidInputError, "Gpuyard-As: is 'owner'"),
        (None, "retired", ForbiddenError, "The user retired is disabled"),
    ],
)
def test_nobody_else_acts_for_a_user(
    instance: TestInstance,
    sender: str | None,
    user: str,
    error: type[Exception],
    fault: str,
) -> None:
    if user == "retired":
        instance.ok("user", "add", "retired")
        instance.ok("user", "disable", "retired")
    secret = token(instance, sender) if sender else instance.address().token
    with acting(instance, secret, user) as they, pytest.raises(error, match=fault):
        they.who_am_i()


def test_a_lesser_token_of_an_administrator_acts_for_nobody(
    instance: TestInstance,
) -> None:
    instance.ok("user", "add", "second-boss", "--role", "administrator")
    secret = token(instance, "second-boss", "--role", "member")
    with acting(instance, secret, "member") as they, pytest.raises(ForbiddenError):
        they.who_am_i()


def test_a_stream_for_another_user_ends_with_that_user(instance: TestInstance) -> None:
    instance.ok("user", "add", "streamed")
    url = f"{instance.address().url}/api/v1/events"
    headers = {
        "Accept": "text/event-stream",
        "Authorization": f"Bearer {instance.address().token}",
        "Gpuyard-As": "streamed",
    }
    with httpx.stream("GET", url, headers=headers, timeout=60) as events:
        parts = events.iter_bytes()
        next(parts)
        instance.ok("user", "disable", "streamed")
        with pytest.raises(httpx.HTTPError):
            for _ in parts:
                pass


def test_a_user_who_sends_too_much_is_told_to_wait() -> None:
    with make_instance(GPUYARD_SERVER__MAX_REQUESTS_PER_S="1") as made:
        made.ok("up")
        url = made.address().url
        secret = made.json("user", "add", "eager")["token"]
        eager = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=url, headers=eager, timeout=60) as web:
            answers = (web.get("/api/v1/whoami") for _ in range(5000))
            refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["Retry-After"] == "1"
        assert refused.json()["code"] == "rate_limited"
        owner = {"Authorization": f"Bearer {made.address().token}"}
        whoami = httpx.get(f"{url}/api/v1/whoami", headers=owner, timeout=60)
        assert whoami.status_code == 200
        # The command waits, and asks again.
        there = {"GPUYARD_URL": url, "GPUYARD_TOKEN": secret}
        assert "eager" in made.ok("whoami", env=there)


def test_only_who_left_the_results_of_a_study_and_maintainers_replace_them(
    instance: TestInstance,
) -> None:
    instance.ok("user", "add", "another", "--role", "member")
    body = {
        "study": "layouts",
        "model": "tiny/Llama",
        "objective": "cheapest",
        "at": 1_800_000_000.0,
        "strategies": [],
    }
    path = "/api/v1/studies/run_1"
    with client(instance, "member") as own:
        own.call(Call("PUT", path, dict, body=body))
    with client(instance, "another") as other, pytest.raises(ForbiddenError):
        other.call(Call("PUT", path, dict, body={**body, "best": "mine"}))
    with client(instance, "maintainer") as maintainer:
        done = maintainer.call(Call("PUT", path, dict, body={**body, "best": "tp2"}))
    assert (done["best"], done["recorded_by"]) == ("tp2", "member")
    wrong = {**body, "strategies": [{"strategy_id": "tp2", "speed": 1}]}
    with client(instance, "member") as own, pytest.raises(InvalidInputError) as fault:
        own.call(Call("PUT", path, dict, body=wrong))
    fields = {one.field for one in fault.value.faults}
    assert "strategies.0.speed" in fields
