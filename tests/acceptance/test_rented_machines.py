"""Jobs on machines that are rented for them, from a cloud whose machines are real
processes that really join.
"""

import pytest

from tests.support.fake_cloud import FakeCloud, fake_cloud_environment
from tests.support.instance import TestInstance, make_instance
from tests.support.ports import free_port
from tests.support.wait import wait_until


@pytest.fixture(scope="module")
def rented(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("cloud")
    cloud = FakeCloud(folder)
    environment = fake_cloud_environment(folder, free_port(2))
    with make_instance(**environment) as instance:
        try:
            yield instance, cloud
        finally:
            cloud.close_all()


def run(instance: TestInstance, *words: str) -> str:
    provider = ("--provider", "fakecloud")
    return instance.ok("run", "--detach", *provider, *words).strip()


def told(instance: TestInstance, cloud: FakeCloud, job: str) -> str:
    """What is known of a job that went another way, for whoever reads a failure."""
    attempts = instance.json("show", job)["attempts"]
    logs = [cloud.log(row["id"]) for row in cloud.rows()]
    return "\n".join((*map(str, attempts), *logs, instance.newest_logs()))


def test_a_job_runs_on_a_machine_that_is_rented_for_it(rented):
    instance, cloud = rented
    job = run(instance, "--", "sh", "-c", "echo from afar; exit 3")
    ended = instance.wait(job)
    assert ended.state == "failed", instance.newest_logs()
    assert ended.exit_code == 3, told(instance, cloud, job)
    assert instance.ok("logs", job) == "from afar\n"
    wait_until(lambda: not cloud.live(), what="the machine to end")
    (machine,) = cloud.rows()
    assert machine["type"] == "cpu.small"
