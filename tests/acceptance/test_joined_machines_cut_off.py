"""Three machines that have joined, each behind a cable of its own: one is cut off and
removed while its job runs.
"""

from contextlib import ExitStack, contextmanager

from tests.support.instance import make_instance
from tests.support.joined import (
    JoinedMachine,
    free_ports,
    invite,
    nodes,
    wait_for_node,
)
from tests.support.network import namespaces
from tests.support.wait import wait_until

TRAINS = """\
import os, pathlib, sys, time
resumed = os.environ.get("GPUYARD_RESUME_FROM")
if resumed:
    print("resumed from", pathlib.Path(resumed).read_text(), flush=True)
    sys.exit()
pathlib.Path("step-3.ck").write_text("three")
print("saved", flush=True)
time.sleep(600)
"""
NAMES = ("lab1", "lab2", "lab3")


@contextmanager
def three_machines(instance, port):
    """Each has joined by its own cable, and runs in its own namespace."""
    with ExitStack() as stack:
        cables = stack.enter_context(namespaces(len(NAMES)))
        machines = []
        for name, cable in zip(NAMES, cables, strict=True):
            machine = JoinedMachine(instance, cable.prefix)
            stack.callback(machine.end)
            _, code = invite(instance, "--name", name)
            machine.join(f"https://{cable.address}:{port + 1}", code)
            machine.start()
            machines.append(machine)
        for name in NAMES:
            wait_for_node(instance, name)
        yield cables, machines


def test_a_job_goes_on_elsewhere_when_its_machine_is_cut_off_and_removed():
    port = free_ports()
    settings = {
        "GPUYARD_SERVER__AGENTS_LISTEN": f"0.0.0.0:{port}",
        "GPUYARD_NODE__HEARTBEAT_S": "0.5",
    }
    with (
        make_instance(**settings) as instance,
        three_machines(instance, port) as (cables, machines),
    ):
        (own,) = nodes(instance).keys() - set(NAMES)
        for name in (own, "lab1", "lab3"):
            instance.ok("nodes", "cordon", name)
        (instance.work / "train.py").write_text(TRAINS)
        words = ("--checkpoint", "*.ck", "--retries", "1", "train.py")
        job = instance.ok("run", "--detach", *words).strip()
        wait_until(lambda: instance.json("checkpoints", job)["items"], 60, "it to save")
        ids = {name: node["id"] for name, node in nodes(instance).items()}
        assert instance.job(job).node == ids["lab2"]

        cables[1].cut()
        wait_for_node(instance, "lab2", "silent")
        instance.ok("nodes", "uncordon", "lab3")
        assert instance.job(job).node == ids["lab2"], "silence is not death"
        instance.ok("nodes", "remove", "lab2")
        assert instance.wait(job).state == "completed"
        assert instance.job(job).node == ids["lab3"]
        assert "resumed from three" in instance.ok("logs", job)

        # What still runs on the machine ends as soon as it hears of it.
        cables[1].mend()
        refusal = wait_until(machines[1].refusal, 30, "lab2 to be told")
        assert "lab2 was removed" in refusal
        wait_until(lambda: not machines[1].programs(), 30, "its program to end")
