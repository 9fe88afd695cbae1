"""`gpuyard down`: what runs, what waits, and nothing left behind."""

import psutil

from tests.support.forkserver import REAL_AGENT
from tests.support.instance import TestInstance, keeper_looks, make_instance
from tests.support.wait import wait_until
from tests.support.web import http


def processes_of(instance: TestInstance) -> list[list[str]]:
    """The command lines of this home's processes."""
    home = str(instance.home.root)
    found = [
        process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])
    ]
    return [words for words in found if any(home in word for word in words)]


def servers_of(instance: TestInstance) -> list[list[str]]:
    """The command lines of this home's servers."""
    return [words for words in processes_of(instance) if "gpuyard.server" in words]


def test_what_runs_is_cancelled_and_what_waits_waits_for_the_next_start(
    instance: TestInstance,
) -> None:
    pid_file = instance.work / "pid"
    deaf = f"trap '' TERM; echo $$ > {pid_file}; while :; do sleep 0.1; done"
    instance.ok("up")
    with http(instance) as web:
        nodes = wait_until(lambda: web.get("/api/v1/nodes").json()["items"])
    whole_machine = {"cpus": nodes[0]["cpus"]}
    running = instance.submit(["sh", "-c", deaf], resources=whole_machine)
    waiting = [instance.submit(["true"], resources=whole_machine) for _ in range(3)]
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip())
    said = instance.ok("down", "--running", "cancel")
    assert said == "gpuyard is down: 1 running job cancelled, 3 jobs left waiting\n"
    assert not psutil.pid_exists(int(pid_file.read_text()))
    instance.ok("up")
    assert instance.wait(running).state == "cancelled"
    assert {instance.wait(job_id).state for job_id in waiting} == {"completed"}


def test_ups_and_downs_in_quick_succession_leave_nothing_behind(
    instance: TestInstance,
) -> None:
    for _ in range(3):
        instance.ok("up")
        assert instance.ok("down") == "gpuyard is down\n"
        wait_until(lambda: not processes_of(instance), what="all processes to end")
    instance.ok("run", "--", "true")
    assert len(instance.json("nodes")["items"]) == 1


def test_down_gives_up_a_server_that_was_killed() -> None:
    with make_instance(GPUYARD_SERVER__RESTART="true") as instance:
        instance.wait(instance.submit(["sleep", "300"]), "running")
        instance.kill("server")
        instance.run("down", "--running", "leave")
        keeper_looks(instance, 2)
        # The keeper may have started another one a moment before.
        wait_until(lambda: not servers_of(instance), what="all servers to end")
        assert not instance.home.server.exists()


def test_down_ends_the_agent_that_waits_for_one_whose_keeper_was_killed() -> None:
    with make_instance(**{REAL_AGENT: "1"}) as instance:
        instance.wait(instance.submit(["true"]))
        first = instance.pid("keeper")
        agent = instance.pid("agent")
        instance.kill("keeper")
        second = wait_until(
            lambda: (pid := instance.pid("keeper")) != first and pid,
            what="another keeper",
        )
        wait_until(lambda: psutil.Process(second).children(), what="its own agent")
        assert instance.pid("agent") == agent, "the first one still works"
        assert instance.ok("down") == "gpuyard is down\n"
        wait_until(lambda: not processes_of(instance), what="all processes to end")
