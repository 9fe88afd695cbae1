"""Three machines that have joined, each behind a cable of its own: one is cut off and
removed while its job runs.
"""

import time
from contextlib import ExitStack, contextmanager
from itertools import combinations

import pytest

from tests.support.instance import make_instance
from tests.support.joined import (
    JoinedMachine,
    invite,
    nodes,
    wait_for_node,
)
from tests.support.network import namespaces
from tests.support.ports import free_port
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
# Each of two shares; the second reaches the first at the address that it was told.
GANG = """\
import os, pathlib, socket, sys, time
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
resumed = os.environ.get("GPUYARD_RESUME_FROM")
if os.environ["NODE_RANK"] == "0":
    with socket.create_server(("", address[1])) as server:
        peer, (host, _) = server.accept()
        print("met", peer.recv(100).decode(), "from", host, flush=True)
    if resumed:
        print("resumed from", pathlib.Path(resumed).read_text(), flush=True)
        sys.exit()
    pathlib.Path("step-3.ck").write_text("three")
    print("saved", flush=True)
else:
    while True:
        try:
            peer = socket.create_connection(address, 60)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    peer.send(b"share 1")
    if resumed:
        sys.exit()
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
        for first, second in combinations(cables, 2):
            first.connect(second)
        for name in NAMES:
            wait_for_node(instance, name)
        yield cables, machines


@pytest.fixture
def labs():
    """An instance, and its three machines with their cables."""
    port = free_port(2)
    settings = {
        "GPUYARD_SERVER__AGENTS_LISTEN": f"0.0.0.0:{port}",
        "GPUYARD_NODE__HEARTBEAT_S": "0.5",
    }
    with (
        make_instance(**settings) as instance,
        three_machines(instance, port) as (cables, machines),
    ):
        yield instance, cables, machines


def test_a_gang_meets_over_the_network_and_goes_on_without_a_machine_that_is_lost(
    labs,
):
    instance, cables, _ = labs
    (own,) = nodes(instance).keys() - set(NAMES)
    for name in (own, "lab3"):
        instance.ok("nodes", "cordon", name)
    (instance.work / "gang.py").write_text(GANG)
    words = ("--nodes", "2", "--checkpoint", "*.ck", "--retries", "1", "gang.py")
    job = instance.ok("run", "--detach", *words).strip()
    wait_until(lambda: instance.json("checkpoints", job)["items"], what="it to save")
    said = instance.ok("logs", job)
    met = [f"met share 1 from {cable.own_address}" for cable in cables[:2]]
    assert any(line in said for line in met), said

    cables[1].cut()
    wait_for_node(instance, "lab2", "silent")
    instance.ok("nodes", "uncordon", "lab3")
    instance.ok("nodes", "remove", "lab2")
    assert instance.wait(job).state == "completed"
    # With the machine, the attempt is lost. It may be tried once more (--retries).
    *before, last = instance.job(job).attempts
    told = [(attempt.reason, attempt.message) for attempt in before]
    assert "attempt_lost" in [reason for reason, _ in told], told
    assert last.reason is None
    said = instance.ok("logs", job)
    assert "met share 1 from" in said
    assert "resumed from three" in said


def test_a_job_goes_on_elsewhere_when_its_machine_is_cut_off_and_removed(labs):
    instance, cables, machines = labs
    (own,) = nodes(instance).keys() - set(NAMES)
    for name in (own, "lab1", "lab3"):
        instance.ok("nodes", "cordon", name)
    (instance.work / "train.py").write_text(TRAINS)
    words = ("--checkpoint", "*.ck", "--retries", "1", "train.py")
    job = instance.ok("run", "--detach", *words).strip()
    wait_until(lambda: instance.json("checkpoints", job)["items"], what="it to save")
    ids = {name: node["id"] for name, node in nodes(instance).items()}
    assert instance.job(job).node == ids["lab2"]

    cut_at = time.time()
    cables[1].cut()
    wait_for_node(instance, "lab2", "silent")
    assert nodes(instance)["lab2"]["seen_at"] > cut_at, "it was seen until then"
    instance.ok("nodes", "uncordon", "lab3")
    assert instance.job(job).node == ids["lab2"], "silence is not death"
    instance.ok("nodes", "remove", "lab2")
    assert instance.wait(job).state == "completed"
    assert instance.job(job).node == ids["lab3"]
    assert "resumed from three" in instance.ok("logs", job)

    # What still runs on the machine ends as soon as it hears of it.
    cables[1].mend()
    refusal = wait_until(machines[1].refusal, what="lab2 to be told")
    assert "lab2 was removed" in refusal
    wait_until(lambda: not machines[1].programs(), what="its program to end")
