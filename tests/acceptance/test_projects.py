"""Projects with members: who submits to one, who changes what is in it, and who sees a
private one.
"""

from collections.abc import Iterator

import pytest

from gpuyard.client import schedule_calls
from gpuyard.client.connection import Address
from gpuyard.client.sync import Client
from gpuyard.domain.errors import (
    ForbiddenError,
    GpuyardError,
    NotFoundError,
    RefusedError,
)
from gpuyard.domain.users import Changes, ProjectRights
from tests.support.instance import TestInstance, make_instance

# The users, and what each is in the instance; and in the two projects.
USERS = {
    "stranger": "member",
    "looker": "member",
    "worker": "member",
    "lead": "member",
    "chief": "maintainer",
}
ROLES = {"looker": "viewer", "worker": "member", "lead": "maintainer"}


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.ok("up")
        for user, role in USERS.items():
            made.ok("user", "add", user, "--role", role)
        made.ok("project", "add", "vision")
        made.ok("project", "add", "secret", "--private")
        for project in ("vision", "secret"):
            for user, role in ROLES.items():
                made.ok("project", "member", "add", project, user, "--role", role)
        yield made


def client(instance: TestInstance, user: str, *words: str) -> Client:
    """The SDK as a user; `words` are options of its token."""
    issued = instance.json("token", "new", "--user", user, *words)
    return Client(Address(instance.address().url, str(issued["token"])))


def rights(they: Client, project: str) -> ProjectRights:
    """What they may do there, as the server says."""
    me = they.who_am_i()
    return me.projects.get(project, me.elsewhere)


def submit(instance: TestInstance, user: str, project: str) -> str:
    """A job of this user that waits, in this project."""
    with client(instance, user) as they:
        return they.run(["true"], held=True, project=project).id


def is_unseen(project: str, user: str) -> bool:
    """Whether the project does not exist for this user."""
    return project == "secret" and user not in ROLES


@pytest.mark.parametrize(
    ("project", "may"),
    [
        ("vision", {"worker", "lead", "chief"}),
        ("secret", {"worker", "lead"}),
        ("nobody-registered-it", set(USERS)),
    ],
)
def test_only_members_submit_to_a_registered_project(
    instance: TestInstance, project: str, may: set[str]
) -> None:
    jobs = {"command": ["true"], "held": True, "project": project}
    for user in USERS:
        with client(instance, user) as they:
            submissions = (
                lambda: they.run(["true"], held=True, project=project),
                lambda: they.submit_array({**jobs, "array": "0-1"}),
                lambda: they.add_schedule(["true"], "@yearly", project=project),
                lambda: they.submit([jobs, {**jobs, "name": "other"}]),
            )
            unseen = is_unseen(project, user)
            if not unseen:
                assert rights(they, project).submits == (user in may)
            for submission in submissions:
                if user in may:
                    submission()
                    continue
                error = NotFoundError if unseen else ForbiddenError
                with pytest.raises(error, match=project):
                    submission()


@pytest.mark.parametrize(
    ("project", "may"),
    [("vision", {"lead", "chief", "worker"}), ("secret", {"lead", "worker"})],
)
def test_a_maintainer_of_a_project_changes_what_others_have_in_it(
    instance: TestInstance, project: str, may: set[str]
) -> None:
    for user in USERS:
        job_id = submit(instance, "worker", project)
        with client(instance, user) as they:
            if not is_unseen(project, user):
                changes = rights(they, project).changes
                assert (changes is Changes.ALL) == (user in may - {"worker"})
            if user in may:
                they.job(job_id).cancel()
            else:
                with pytest.raises((ForbiddenError, NotFoundError)):
                    they.job(job_id).cancel()
        expected = "cancelled" if user in may else "queued"
        assert instance.job(job_id).state == expected


def test_who_left_a_project_starts_nothing_in_it(instance: TestInstance) -> None:
    instance.ok("user", "add", "leaver")
    for project in ("vision", "secret"):
        instance.ok("project", "member", "add", project, "leaver")
    with client(instance, "leaver") as leaver:
        job = leaver.run(["true"], held=True, project="vision")
        schedule = leaver.add_schedule(["true"], "@yearly", project="vision")
        hidden = leaver.run(["true"], held=True, project="secret")
        instance.ok("project", "member", "remove", "vision", "leaver")
        instance.ok("project", "member", "remove", "secret", "leaver")
        job.cancel()
        with pytest.raises(ForbiddenError, match="is no member of the project vision"):
            job.resume()
        with pytest.raises(ForbiddenError, match="is no member of the project vision"):
            leaver.run_schedule(schedule.id)
        with pytest.raises(GpuyardError):
            hidden.cancel()


def test_who_left_a_project_releases_nothing_in_it(instance: TestInstance) -> None:
    instance.ok("user", "add", "goer")
    instance.ok("project", "member", "add", "vision", "goer")
    with client(instance, "goer") as goer:
        job = goer.run(["true"], held=True, project="vision")
        instance.ok("project", "member", "remove", "vision", "goer")
        with pytest.raises(ForbiddenError, match="is no member of the project vision"):
            job.release()
        job.cancel()


def test_who_only_sees_a_private_project_runs_no_command_beside_its_jobs(
    instance: TestInstance,
) -> None:
    instance.ok("user", "add", "demoted")
    instance.ok("project", "member", "add", "secret", "demoted")
    job_id = submit(instance, "demoted", "secret")
    members = ("project", "member", "add", "secret", "demoted", "--role")
    instance.ok(*members, "viewer")
    with client(instance, "demoted") as demoted:
        with pytest.raises(ForbiddenError, match="changes nothing any more"):
            demoted.job(job_id).exec(["true"])
        instance.ok(*members, "member")
        with pytest.raises(RefusedError, match="does not run yet"):
            demoted.job(job_id).exec(["true"])


def test_a_lesser_token_is_worth_less_in_a_project_too(instance: TestInstance) -> None:
    job_id = submit(instance, "worker", "vision")
    with client(instance, "lead", "--role", "member") as lead:
        with pytest.raises(ForbiddenError, match="was submitted by worker"):
            lead.job(job_id).cancel()
        with pytest.raises(ForbiddenError, match="no maintainer of the project"):
            lead.set_project_member("vision", "stranger")
        lead.run(["true"], held=True, project="vision")


def test_maintainers_of_a_project_say_who_is_in_it(instance: TestInstance) -> None:
    instance.ok("user", "add", "new")
    for user in ("stranger", "looker", "worker", "chief"):
        with (
            client(instance, user) as they,
            pytest.raises(ForbiddenError, match="no maintainer of the project vision"),
        ):
            they.set_project_member("vision", "new")
    with client(instance, "lead") as lead:
        project = lead.set_project_member("vision", "new", "viewer")
        assert ("new", "viewer") in {(one.user, one.role) for one in project.members}
        project = lead.remove_project_member("vision", "new")
        assert "new" not in {one.user for one in project.members}
        with pytest.raises(ForbiddenError, match="this needs administrator"):
            lead.update_project("vision", private=True)
        with pytest.raises(ForbiddenError, match="this needs administrator"):
            lead.add_project("other")


def test_names_and_keys_are_those_of_their_owner(instance: TestInstance) -> None:
    with client(instance, "worker") as worker, client(instance, "lead") as lead:
        first = _one_of_each(worker, "same", ["echo", "worker"])
        second = _one_of_each(lead, "same", ["echo", "lead"])
        assert not set(first) & set(second)
        # A repeated request is the first one again, for each of them.
        assert _one_of_each(worker, "same", ["echo", "worker"]) == first
        assert _one_of_each(lead, "same", ["echo", "lead"]) == second
        for they, own in ((worker, first), (lead, second)):
            assert they.job("same-job").id == own[0]
            assert they.array("same-array").id == own[1]
            assert they.schedule("same-schedule").id == own[2]
        with pytest.raises(RefusedError, match="'same' was used for another spec"):
            worker.run(["false"], name="same-job", held=True, idempotency_key="same")
    with client(instance, "stranger") as stranger:
        assert stranger.job("same-job").id == second[0]
    assert instance.json("show", "same-job")["id"] == second[0]


def _one_of_each(they: Client, key: str, command: list[str]) -> list[str]:
    """The ids of a job, an array and a schedule with this idempotency key."""
    job = they.run(command, name=f"{key}-job", held=True, idempotency_key=key)
    array = {"command": command, "held": True, "array": "0-1", "name": f"{key}-array"}
    daily = {"command": command, "name": f"{key}-schedule"}
    options = {"timezone": "UTC", "idempotency_key": key}
    schedule = they.call(schedule_calls.create(daily, "@yearly", options))
    of_array = they.submit_array({**array, "idempotency_key": key}).id
    return [job.id, of_array, schedule.id]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("add", "vision"), "There is a project vision already"),
        (("add", "default"), "'default' is what jobs without a project are listed"),
        (("add", "a/b"), "has a slash"),
        (("show", "nothing"), "There is no project 'nothing'"),
        (("update", "vision"), "private: is missing"),
        (("update", "nothing", "--open"), "There is no project 'nothing'"),
        (("member", "add", "vision", "nobody"), "There is no user 'nobody'"),
        (
            ("member", "add", "vision", "chief", "--role", "administrator"),
            "'administrator' is a role in the whole instance",
        ),
        (("member", "remove", "vision", "chief"), "chief is no member of the project"),
    ],
)
def test_bad_input_is_told(
    instance: TestInstance, words: tuple[str, ...], fault: str
) -> None:
    done = instance.run("project", *words)
    assert done.returncode != 0
    assert fault in done.stderr


def test_projects_outlive_a_killed_server(instance: TestInstance) -> None:
    before = instance.json("project", "list")
    shown = instance.ok("project", "show", "secret")
    instance.kill("server")
    instance.ok("up")
    assert instance.json("project", "list") == before
    assert instance.ok("project", "show", "secret") == shown
    for member in ("lead (maintainer)", "looker (viewer)", "worker (member)"):
        assert member in shown
    instance.ok("ledger", "check")


def test_a_service_account_works_in_its_project_only(instance: TestInstance) -> None:
    made = instance.json("user", "add", "robot", "--project", "secret")
    url = instance.address().url
    with Client(Address(url, made["token"])) as robot:
        job = robot.run(["true"], held=True, project="secret")
        robot.job(job.id).cancel()
        for elsewhere in ("vision", "nobody-registered-it", None):
            with pytest.raises(ForbiddenError, match="a service account of the proj"):
                robot.run(["true"], held=True, project=elsewhere)
        theirs = submit(instance, "worker", "secret")
        with pytest.raises(ForbiddenError, match="was submitted by worker"):
            robot.job(theirs).cancel()
        instance.ok(
            *("project", "member", "add", "secret", "robot", "--role", "maintainer")
        )
        robot.job(theirs).cancel()
        with pytest.raises(ForbiddenError, match="The role of robot here is member"):
            robot.update_user("stranger", role="viewer")
    with client(instance, "stranger") as stranger:
        (seen,) = (user for user in stranger.users() if user.name == "robot")
        assert seen.project is None


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("user", "add", "r", "--project", "none"), "There is no project 'none'"),
        (
            ("user", "add", "r", "--project", "secret", "--sign-in"),
            "does not go with awaits_sign_in",
        ),
        (
            ("user", "add", "r", "--project", "secret", "--role", "administrator"),
            "a role in the whole instance",
        ),
        (("user", "update", "courier", "--role", "member"), "is a service account of"),
        (("user", "update", "courier", "--sign-in"), "is a service account of"),
        (("project", "member", "add", "vision", "courier"), "is a service account of"),
    ],
)
def test_what_a_service_account_cannot_be(
    instance: TestInstance, words: tuple[str, ...], fault: str
) -> None:
    if "courier" not in instance.ok("user", "list"):
        instance.ok("user", "add", "courier", "--project", "secret")
    done = instance.run(*words)
    assert done.returncode != 0
    assert fault in done.stderr
