"""A rented machine from its first boot to its end, with a real server: it joins, runs a
job, is taken back by the cloud, and ends itself when the server is gone.
"""

import json

import pytest

from gpuyard.providers.instances.boot_plan import BootPlan
from gpuyard.providers.instances.cloud_init import user_data
from tests.support.cloud_machine import cloud_machine
from tests.support.instance import make_instance
from tests.support.joined import invite, nodes
from tests.support.ports import free_port
from tests.support.wait import wait_until

# When it is asked to save, it does so in two steps, and leaves.
TRAINS = """\
if [ "$GPUYARD_RESUME_FROM" ]; then
    echo resumed from $(cat "$GPUYARD_RESUME_FROM")
    exit
fi
trap 'echo seven >step-7.ck; exit' USR1
echo begun as $(id -un)
while :; do sleep 0.05; done
"""
NOTICE = json.dumps({"action": "terminate", "time": "2030-03-17T17:46:40Z"})
UNIT = "/etc/systemd/system/gpuyard-silence.service"


@pytest.fixture
def rented():
    """An instance, and a spot machine that has joined it by its user data."""
    port = free_port(2)
    settings = {
        "GPUYARD_SERVER__AGENTS_LISTEN": f"0.0.0.0:{port}",
        "GPUYARD_NODE__HEARTBEAT_S": "0.5",
    }
    with make_instance(**settings) as instance, cloud_machine() as machine:
        _, code = invite(instance, "--name", "rented")
        plan = BootPlan(
            join_url=f"https://{machine.network.address}:{port + 1}",
            join_code=code,
            node_name="rented",
            install="gpuyard",
            silence_s=600,
            needs_gpus=0,
            needs_docker=False,
            spot=True,
            cloud="aws",
        )
        machine.add_gpuyard()
        machine.start_metadata_service()
        machine.start(user_data(plan))
        yield instance, machine


def heard_at(machine):
    """At which uptime the machine has last heard from the server."""
    return float(machine.file("/run/gpuyard-heartbeat").read_text() or 0)


def wait_for(machine, condition, what):
    """Wait for it; show all that the machine said if it does not come."""
    try:
        return wait_until(condition, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{machine.said}") from None


def test_it_joins_is_taken_back_and_ends_itself_when_the_server_is_gone(rented):
    instance, machine = rented

    def state():
        return nodes(instance).get("rented", {}).get("state")

    wait_for(machine, lambda: state() == "online", "it to join")
    first = heard_at(machine)
    wait_for(machine, lambda: heard_at(machine) > first, "another heartbeat")

    (own,) = nodes(instance).keys() - {"rented"}
    instance.ok("nodes", "cordon", own)
    words = ("--checkpoint", "*.ck", "--checkpoint-signal", "USR1", "sh", "trains.sh")
    (instance.work / "trains.sh").write_text(TRAINS)
    job = instance.ok("run", "--detach", *words).strip()
    wait_until(lambda: "begun" in instance.ok("logs", job), what="the job to begin")
    assert "begun as gpuyard-job" in instance.ok("logs", job)
    instance.ok("nodes", "uncordon", own)
    machine.give_notice(NOTICE)
    assert instance.wait(job).state == "completed"
    first_attempt, second = instance.job(job).attempts
    assert (first_attempt.reason, second.reason) == ("preempted", None)
    assert "resumed from seven" in instance.ok("logs", job)
    assert nodes(instance)["rented"]["cordoned"]

    instance.ok("down")
    assert machine.is_on
    # As if ten minutes had passed.
    machine.run("sed", "-i", "s/ 600 / 2 /", UNIT)
    machine.wait_until_off()
    assert "the server has been silent" in machine.console.read_text(), machine.said
