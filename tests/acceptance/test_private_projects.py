"""Private projects: for who is no member, nothing of them exists. One thing of each
kind is made, and every route in the guide is asked for it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpuyard.client.connection import Address
from gpuyard.client.sync import Client
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

PAGE = Path(__file__).parents[2] / "docs/guides/users.md"
SCRIPT = Path(__file__).parents[1] / "programs/scripts/steps.py"
# All that is of the project has this in its name.
SECRET = "hush"
MADE_UP = "no-such-thing"
# A member of nothing, a member of another project, and a maintainer of the instance.
STRANGERS = ("stranger", "neighbour", "chief")
# What is of no project, by the noun in its path: the instance has it, or a user.
OF_NO_PROJECT = {
    "gpus",
    "invitations",
    "models",
    "nodes",
    "pools",
    "providers",
    "secrets",
    "studies",
    "tokens",
    "trust",
    "users",
    "verifications",
}
# Everybody sees that GPUs are taken (see the last test here), and programs of our own.
SHOWN_TO_ALL = {"reservations", "templates"}
# These add something to a project: its members do it together, and for others its name
# can be guessed.
ADDS = {
    "POST /api/v1/datasets/{project}/{name}/chunks:missing",
    "POST /api/v1/datasets/{project}/{name}/versions",
    "PUT /api/v1/datasets/{project}/{name}/chunks/{sha256}",
}
# What stands in a path behind the thing itself.
FILLED = {
    "{name}": "words",
    "{number}": "1",
    "{other}": "open",
    "{port}": "1",
    "{sha256}": "0" * 64,
    "{user}": "stranger",
}
PROGRAM = (
    "echo hush-output; echo x > hush-ckpt.pt; while :; do echo hush; sleep 1; done"
)
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OTAxMjM0NQ==",
}


@dataclass(frozen=True, slots=True)
class Things:
    """An instance, the tokens of its users, and the id of what is in the project by the
    noun in its path.
    """

    instance: TestInstance
    tokens: Mapping[str, str]
    ids: Mapping[str, str]

    def client(self, user: str) -> Client:
        """The SDK as a user."""
        return Client(Address(self.instance.address().url, self.tokens[user]))

    def web(self, user: str) -> httpx.Client:
        """Plain HTTP as a user."""
        headers = {
            "Authorization": f"Bearer {self.tokens[user]}",
            "Content-Type": "application/json",
        }
        url = self.instance.address().url
        return httpx.Client(base_url=url, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def things() -> Iterator[Things]:
    with make_instance() as made:
        made.home.create()
        made.home.settings.write_text(f'[scripts.steps]\nfile = "{SCRIPT}"\ngpus = 0\n')
        made.ok("up", "--simulate-gpus", "1x24")
        made.ok("project", "add", SECRET, "--private")
        made.ok("project", "add", "other", "--private")
        tokens = {
            user: _add(made, user, role)
            for user, role in {
                "worker": "member",
                "looker": "member",
                "stranger": "member",
                "neighbour": "member",
                "chief": "maintainer",
            }.items()
        }
        made.ok("project", "member", "add", SECRET, "worker")
        made.ok("project", "member", "add", SECRET, "looker", "--role", "viewer")
        made.ok("project", "member", "add", "other", "neighbour")
        # By the owner of the instance: an agent of root runs no jobs of users.
        with Client(made.address()) as owner:
            ids = _make(made, owner)
            running = owner.job(ids["jobs"])
            wait_until(lambda: running.refresh().checkpoints, what="the checkpoint")
            (kept,) = running.checkpoints()
            ids["checkpoints"] = kept.id
        yield Things(made, tokens, ids)


def _add(instance: TestInstance, user: str, role: str) -> str:
    """Add a user; its token."""
    return str(instance.json("user", "add", user, "--role", role)["token"])


def _make(instance: TestInstance, owner: Client) -> dict[str, str]:
    """One thing of each kind; its id by the noun in its path."""
    ended = owner.run(
        ["sh", "-c", "echo 1 > hush-left"],
        name="hush-ended",
        project=SECRET,
        workdir=str(instance.work),
        artifacts=["hush-left"],
    )
    ended.wait(60)
    (left,) = ended.artifacts()
    (instance.work / "words.txt").write_text("hush")
    owner.add_dataset("words", instance.work / "words.txt", project=SECRET)
    running = owner.run(
        ["bash", "-c", PROGRAM],
        name="hush-running",
        project=SECRET,
        workspace="words",
        workdir=str(instance.work),
        resources={"gpus": {"count": 1}},
        checkpoint={"path": "hush-ckpt.pt"},
    )
    body = {"command": ["true"], "project": SECRET, "held": True}
    array = owner.submit_array({**body, "name": "hush-array", "array": "0-1"})
    schedule = owner.add_schedule(
        ["true"], "@yearly", name="hush-schedule", project=SECRET
    )
    batch = {
        "script": "steps",
        "items": [{"path": "/tmp/hush-item"}],
        "source": "/tmp/hush-source",
        "results": str(instance.work),
        "project": SECRET,
    }
    headers = {"Authorization": f"Bearer {owner.address.token}"}
    url = f"{owner.address.url}/api/v1/batches"
    made = httpx.post(url, json=batch, headers=headers, timeout=60).json()
    words = ("--project", SECRET, "--amount", "5", "--period", "total")
    instance.ok("budgets", "set", "hush-budget", *words)
    return {
        "jobs": running.id,
        "artifacts": left.id,
        "arrays": array.id,
        "schedules": schedule.id,
        "batches": made["batch_id"],
        "budgets": "hush-budget",
        "datasets": SECRET,
        "projects": SECRET,
        "workspaces": SECRET,
    }


def rights() -> dict[str, str]:
    """The least role for each request, as the guide says it."""
    rows = re.findall(r"^\| `([A-Z]+ /\S+)` \| (\w+) \|$", PAGE.read_text(), re.M)
    return dict(rows)


def documented() -> list[str]:
    """Each request of the guide: its method and its path."""
    return [what for what in rights() if "/ledger/" not in what and "stop" not in what]


def _ask(
    web: httpx.Client, method: str, path: str, body: Any = None
) -> tuple[int, str]:
    if method == "WEBSOCKET":
        answer = web.get(path, headers=HANDSHAKE)
        return answer.status_code, answer.text
    content = None if method in ("GET", "DELETE") else json.dumps(body or {})
    with web.stream(method, path, content=content) as answer:
        answer.read()
        return answer.status_code, answer.text


@pytest.mark.parametrize("user", STRANGERS)
def test_what_is_of_a_private_project_is_answered_as_if_it_was_not_there(
    things: Things, user: str
) -> None:
    wrong: list[str] = []
    asked = 0
    with things.web(user) as web:
        for what in documented():
            method, path = what.split(" ")
            noun = _noun(path)
            if noun not in things.ids:
                continue
            body = _body(what, things)
            for reference in _references(things, noun):
                asked += 1
                (first, *_) = re.findall(r"\{\w+\}", path)
                found = [
                    _ask(web, method, _filled(path.replace(first, name, 1)), body)
                    for name in (reference, MADE_UP)
                ]
                (real, unreal) = found
                told = (real[0], real[1].replace(reference, MADE_UP))
                is_known = told != unreal and what not in ADDS
                if is_known or real[0] not in (403, 404):
                    wrong.append(f"{what} {reference}: {real}")
    assert not wrong
    assert asked > 40


def _references(things: Things, noun: str) -> list[str]:
    """What a stranger might call it."""
    whole = things.ids[noun]
    if noun in ("jobs", "arrays", "schedules"):
        name = "hush-running" if noun == "jobs" else f"hush-{noun[:-1]}"
        return [whole, whole[-8:], name]
    return [whole]


def _body(what: str, things: Things) -> dict[str, Any]:
    """What is sent with a request, so that it would be carried out."""
    method, path = what.split(" ")
    if path.startswith("/api/v1/jobs:"):
        # What is held or released has to wait.
        kind = "jobs" if path.endswith(":cancel") else "arrays"
        return {"jobs": [things.ids[kind]]}
    if path.endswith("/chunks:missing"):
        return {"chunks": []}
    if method != "PATCH":
        return {}
    return {"cron": "@monthly"} if _noun(path) == "schedules" else {"priority": 2}


def _noun(path: str) -> str:
    """The noun of a path that is about one thing."""
    one_thing = re.match(r"/api/v1/(\w+)/\{", path)
    return one_thing[1] if one_thing else ""


def _filled(path: str) -> str:
    for name, value in FILLED.items():
        path = path.replace(name, value)
    return f"{path}?port=1" if path.endswith("/forward") else path


def test_every_kind_of_thing_is_made_or_is_of_no_project(things: Things) -> None:
    nouns = {_noun(what.split(" ")[1]) for what in documented()} - {""}
    assert nouns == set(things.ids) | OF_NO_PROJECT | SHOWN_TO_ALL


# Requests of members that change nothing of others.
MAKES_OWN = ADDS | {
    "POST /api/v1/arrays",
    "POST /api/v1/batches",
    "POST /api/v1/code",
    "POST /api/v1/environments",
    "POST /api/v1/git-commits",
    "POST /api/v1/jobs",
    "POST /api/v1/packages",
    "POST /api/v1/schedules",
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "POST /v1/responses",
    # Who sees a job submits its like, as its own, without the keys of others.
    "POST /api/v1/jobs/{reference}/rerun",
    # Who sees jobs looks at what they logged, by a job of its own.
    "POST /api/v1/tensorboards",
    # Results of its own, of a study that others have not left.
    "PUT /api/v1/studies/{run}",
    # A secret with this name of its own (tests/acceptance/test_users.py).
    "PUT /api/v1/secrets/{name}",
}


def test_a_member_of_the_project_changes_nothing_of_others_there(
    things: Things,
) -> None:
    of_members = {what for what, role in rights().items() if role == "member"}
    assert of_members > MAKES_OWN
    wrong: list[str] = []
    with things.web("worker") as web:
        for what in sorted(of_members - MAKES_OWN):
            method, path = what.split(" ")
            thing = things.ids.get(_noun(path), MADE_UP)
            asked = _filled(re.sub(r"\{\w+\}", thing, path, count=1))
            status, text = _ask(web, method, asked, _body(what, things))
            if status not in (403, 404):
                wrong.append(f"{what}: {status} {text}")
    assert not wrong


@pytest.mark.parametrize("user", STRANGERS)
def test_no_list_and_no_count_has_anything_of_it(things: Things, user: str) -> None:
    lists = [
        what.split(" ")[1]
        for what in documented()
        if what.startswith("GET ") and "{" not in what
        # Administrators see everything anyway.
        if rights()[what] != "administrator"
    ]
    lists += ["/api/v1/jobs?folded=true", f"/api/v1/jobs?project={SECRET}"]
    lists += ["/api/v1/events?newest=true", "/api/v1/events?limit=10000"]
    lists += [f"/api/v1/costs?by={by}" for by in ("user", "tier", "gpu", "day")]
    wrong: list[str] = []
    with things.web(user) as web:
        for path in lists:
            status, text = _ask(web, "GET", path)
            told = [each for each in (SECRET, *things.ids.values()) if each in text]
            if status != 200 or told:
                wrong.append(f"{path}: {status} {told}")
        assert not wrong
        listed = web.get("/api/v1/jobs").json()["items"]
        states = Counter(job["state"] for job in listed)
        assert web.get("/api/v1/server").json()["jobs"] == states
        assert re.search(r'gpuyard_jobs\{state="running"\} 0', web.get("/metrics").text)
        for by in ("project", "day"):
            assert web.get(f"/api/v1/costs?by={by}").json()["items"] == []
        (gpu,) = web.get("/api/v1/gpus").json()["items"]
        assert (gpu["state"], gpu["job_id"]) == ("script_busy", None)


@pytest.mark.parametrize("user", STRANGERS)
def test_requests_about_many_jobs_know_nothing_of_it(things: Things, user: str) -> None:
    job = things.ids["jobs"]
    with things.web(user) as web:
        for call in ("cancel", "hold", "release", "wait"):
            body = {"jobs": [job]}
            status, text = _ask(web, "POST", f"/api/v1/jobs:{call}", body)
            assert (status, f"There is no job '{job}'" in text) == (404, True)
        everything = {"all": True, "dry_run": True}
        status, text = _ask(web, "POST", "/api/v1/jobs:cancel", everything)
        assert (status, json.loads(text)["items"]) == (200, [])
        later = {"command": ["true"], "depends_on": [job]}
        status, text = _ask(web, "POST", "/api/v1/jobs", later)
        assert (status, f"there is no job '{job}'" in text) == (422, True)
        for path in ("jobs", "estimate"):
            named = {"command": ["true"], "project": SECRET}
            assert _ask(web, "POST", f"/api/v1/{path}", named)[0] == 404


def test_streams_show_strangers_nothing_of_it(things: Things) -> None:
    headers = {"Accept": "text/event-stream"}
    with (
        things.web("stranger") as web,
        things.client("worker") as worker,
        web.stream("GET", "/api/v1/events", headers=headers) as events,
    ):
        lines = events.iter_lines()
        next(lines)
        hidden = worker.run(["true"], name="hush-later", project=SECRET, held=True)
        hidden.cancel()
        open_ = worker.run(["true"], name="open", held=True)
        open_.cancel()
        seen: list[str] = []
        for line in lines:
            seen.append(line)
            if "job.cancelled" in line:
                break
    text = "\n".join(seen)
    assert "open" in text
    assert SECRET not in text
    assert hidden.id not in text


def test_why_names_no_job_of_it(things: Things) -> None:
    with things.client("stranger") as stranger:
        waiting = stranger.run(["true"], resources={"gpus": {"count": 1}})
        told = json.dumps(waiting.why())
        waiting.cancel()
    assert "wait for a job of others (no timeout)" in told
    assert things.ids["jobs"] not in told


def test_its_members_see_all_of_it(things: Things) -> None:
    with things.web("looker") as web:
        paths = [
            f"/api/v1/{noun}/{things.ids[noun]}"
            for noun in things.ids
            if noun not in ("checkpoints", "datasets", "workspaces")
        ]
        paths.append(f"/api/v1/datasets/{SECRET}/words")
        paths.append(f"/api/v1/workspaces/{SECRET}/words/files")
        paths.append(f"/api/v1/checkpoints/{things.ids['checkpoints']}/content")
        statuses = {path: web.get(path).status_code for path in paths}
        assert set(statuses.values()) == {200}, statuses
        assert SECRET in web.get("/api/v1/events").text
        assert SECRET in web.get("/api/v1/costs").text
        assert SECRET in web.get("/api/v1/workspaces").text
        assert web.get("/api/v1/server").json()["jobs"]["running"] >= 1
        job = things.ids["jobs"]
        assert _ask(web, "POST", f"/api/v1/jobs/{job}/cancel")[0] == 403


def test_a_log_ends_for_who_is_no_member_any_more(things: Things) -> None:
    instance = things.instance
    instance.ok("project", "member", "add", SECRET, "stranger")
    path = f"/api/v1/jobs/{things.ids['jobs']}/logs?follow=true"
    try:
        with things.web("stranger") as web, web.stream("GET", path) as log:
            parts = log.iter_text()
            assert "hush-output" in next(parts)
            instance.ok("project", "member", "remove", SECRET, "stranger")
            with pytest.raises(httpx.HTTPError):
                for _ in parts:
                    pass
    finally:
        instance.run("project", "member", "remove", SECRET, "stranger")


def test_an_open_job_names_no_job_of_it_on_which_it_depends(things: Things) -> None:
    later: dict[str, Any] = {"depends_on": ["hush-running"], "held": True}
    with things.client("worker") as worker:
        job = worker.run(["true"], name="open", **later)
        array = worker.submit_array(
            {"command": ["true"], "name": "open-array", "array": "0-1", **later}
        )
        schedule = worker.add_schedule(
            ["true"], "@yearly", name="open-times", depends_on=["hush-running"]
        )
        own = json.dumps(worker.job(job.id).info.spec)
        paths = [
            f"/api/v1/jobs/{job.id}",
            f"/api/v1/jobs/{job.id}/task",
            f"/api/v1/jobs/{job.id}/why",
            f"/api/v1/events?job={job.id}",
            f"/api/v1/arrays/{array.id}",
            f"/api/v1/arrays/{array.id}/why",
            f"/api/v1/schedules/{schedule.id}",
            "/api/v1/schedules",
            "/api/v1/jobs",
        ]
        with things.web("stranger") as web:
            answers = {path: _ask(web, "GET", path) for path in paths}
        worker.cancel_jobs(job.id, array.id)
        worker.delete_schedule(schedule.id)
    assert "hush-running" in own
    for path, (status, text) in answers.items():
        assert status == 200, path
        assert SECRET not in text, path
        assert things.ids["jobs"] not in text, path
    assert "a job of others" in answers[f"/api/v1/jobs/{job.id}"][1]


def test_a_reservation_does_not_say_that_it_is_of_it(things: Things) -> None:
    times = {"begins": "2999-01-01 00:00", "ends": "2999-01-02 00:00"}
    wanted = {"project": SECRET, "gpus": 1, **times}
    with things.web("chief") as chief, things.client("worker") as worker:
        assert _ask(chief, "POST", "/api/v1/reservations", wanted)[0] == 404
        with Client(things.instance.address()) as owner:
            made = owner.reserve(**wanted)
        elsewhere = {"project": "open", "gpus": 1, **times}
        (shown,) = chief.get("/api/v1/reservations").json()["items"]
        texts = [
            json.dumps(shown),
            chief.get(f"/api/v1/reservations/{made.id}").text,
            _ask(chief, "POST", "/api/v1/reservations", elsewhere)[1],
            chief.get("/api/v1/events?newest=true").text,
        ]
        (seen,) = worker.reservations()
        texts.append(chief.delete(f"/api/v1/reservations/{made.id}").text)
    assert (shown["project"], shown["user"]) == ("others", None)
    assert seen.project == SECRET
    assert [text for text in texts if SECRET in text] == []
