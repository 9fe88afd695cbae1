"""Machines that join by an invitation, and run jobs of the instance."""

import hashlib
import json
import socket
import ssl
import time

import pytest

from gpuyard.domain import wire, wire_frames
from gpuyard.domain.contents import ContentKind
from gpuyard.domain.errors import GpuyardError, RefusedError
from gpuyard.server.authority import Authority, pem_of
from tests.support.instance import make_instance
from tests.support.joined import (
    JoinedMachine,
    invite,
    joined_machine,
    nodes,
)
from tests.support.pool_work import check_work, work_settings
from tests.support.ports import free_port
from tests.support.wait import wait_until
from tests.support.wheels import make_wheel, requirements

# It saves a checkpoint, and ends when it has resumed from one, or is told to.
SAVES = """\
import os, pathlib, sys, time
resumed = os.environ.get("GPUYARD_RESUME_FROM")
print("in", os.getcwd(), flush=True)
if resumed:
    print("resumed from", pathlib.Path(resumed).read_text(), flush=True)
    pathlib.Path("left.txt").write_text("left behind")
    sys.exit()
pathlib.Path("step-3.ck").write_text("three")
print("saved", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def lab():
    """An instance at which machines may join. Its own machine gets no jobs."""
    port = free_port(2)
    with make_instance(GPUYARD_SERVER__AGENTS_LISTEN=f"127.0.0.1:{port}") as instance:
        instance.home.create()
        instance.home.settings.write_text(work_settings(instance.work))
        instance.ok("up")
        wait_until(lambda: nodes(instance), what="the server's own node")
        (instance.own,) = nodes(instance)
        instance.port = port
        instance.ok("nodes", "cordon", instance.own)
        (instance.work / "saves.py").write_text(SAVES)
        yield instance


@pytest.fixture(scope="module")
def machine(lab):
    """A machine that has joined as lab2."""
    with joined_machine(lab, "lab2") as joined:
        yield joined


def test_a_model_and_a_batch_of_scripts_run_on_a_machine_that_has_joined(lab):
    gpus = {"GPUYARD_NODE__SIMULATE_GPUS": "2x24"}
    with joined_machine(lab, "lab3", **gpus):
        model = check_work(lab, lab.work)
        assert lab.job(model).node == nodes(lab)["lab3"]["id"]


def run(lab, *words):
    return lab.ok("run", "--detach", *words).strip()


def test_a_job_runs_on_a_joined_machine_and_all_of_it_comes_and_goes_by_the_link(
    lab, machine
):
    keeps = ("--checkpoint", "*.ck", "--artifacts", "*.txt")
    job = run(lab, *keeps, "--env", "FLAVOUR=mint", "saves.py")
    lab.wait(job, "running")
    saved = wait_until(lambda: lab.json("checkpoints", job)["items"], what="it to save")
    assert lab.job(job).node == nodes(lab)["lab2"]["id"]
    assert saved[0]["sha256"] == hashlib.sha256(b"three").hexdigest()
    blob = lab.home.blobs / saved[0]["sha256"][:2] / saved[0]["sha256"][2:]
    assert blob.read_text() == "three"
    place, said = lab.ok("logs", job).splitlines()
    assert place.startswith(f"in {machine.home.node}")
    assert said == "saved"
    assert lab.ok("logs", job, "--search", "ave") == "saved\n"
    assert lab.ok("exec", job, "--", "printenv", "FLAVOUR", input="") == "mint\n"
    assert not list(machine.home.blobs.glob("??/*")), "it keeps a copy"
    lab.ok("cancel", job)
    lab.wait(job)
    # What it needs to resume comes back by the link.
    lab.ok("resume", job)
    assert lab.wait(job).state == "completed"
    assert "resumed from three" in lab.ok("logs", job)
    (left,) = lab.json("artifacts", "list", job)["items"]
    assert left["path"] == "left.txt"
    assert left["sha256"] == hashlib.sha256(b"left behind").hexdigest()
    lab.ok("artifacts", "get", job)
    assert (lab.work / "left.txt").read_text() == "left behind"
    assert not list(machine.home.blobs.glob("??/*")), "it keeps a copy"


def test_a_dataset_comes_by_the_link_once(lab, machine):
    (lab.work / "data").mkdir()
    (lab.work / "data/words").write_text("some words")
    (lab.work / "data/large.bin").write_bytes(b"12345678" * (2 << 20))
    lab.ok("datasets", "add", "corpus", "data")
    program = "cat $GPUYARD_DATASET_CORPUS/words; sha256sum $GPUYARD_DATASET_CORPUS/l*"
    for _ in range(2):
        said = lab.ok("run", "--dataset", "corpus", "--", "sh", "-c", program)
        assert said.startswith("some words")
        assert hashlib.sha256(b"12345678" * (2 << 20)).hexdigest() in said
        assert f" {machine.home.node}/datasets/" in said
    (copy,) = (machine.home.node / "datasets").iterdir()
    assert sorted(path.name for path in (copy / "files").iterdir()) == [
        "large.bin",
        "words",
    ]
    assert not list(machine.home.fetched.rglob("chunks/*/*")), "it keeps them twice"


def test_packages_are_installed_there_from_the_list_that_comes_by_the_link(
    lab, machine
):
    wheels = lab.work / "wheels"
    make_wheel(wheels, "far_words", "said = 'over there'")
    named = lab.work / "requirements.txt"
    named.write_text(requirements(wheels, "far_words==1.0"))
    program = "import sys, far_words; print(sys.prefix, far_words.said)"
    words = ("run", "--packages", "requirements.txt", "--", "python3", "-c", program)
    said = lab.ok(*words).splitlines()
    assert said[0] == "gpuyard: installing the packages of requirements.txt"
    assert said[-1].startswith(f"{machine.home.node}/packages/")
    assert said[-1].endswith(" over there")
    assert lab.ok(*words).splitlines() == said[-1:], "it is installed again"


CARRIED = """
carry = true

[steps.clean]
command = ["python3", "clean.py"]
inputs = ["words.py", "data"]
outputs = ["out/clean.txt"]

[steps.count]
command = ["sh", "-c", "wc -w < out/clean.txt > count.txt; pwd > place.txt"]
needs = ["clean"]
outputs = ["count.txt", "place.txt"]
"""


def test_a_flow_passes_its_files_on_between_machines(lab, machine):
    folder = lab.work / "flow"
    (folder / "data").mkdir(parents=True)
    (folder / "flow.toml").write_text(CARRIED)
    (folder / "words.py").write_text("def cleaned(text): return text.lower()\n")
    (folder / "clean.py").write_text(
        "import words, pathlib\n"
        "text = pathlib.Path('data/raw.txt').read_text()\n"
        "pathlib.Path('out/clean.txt').write_text(words.cleaned(text))\n"
    )
    raw = folder / "data/raw.txt"
    raw.write_text("TO BE")

    def states():
        """What became of each step."""
        said = json.loads(lab.ok("flow", "run", "flow/flow.toml", "--json"))
        return {step["step"]: step["state"] for step in said["steps"]}

    assert states() == {"clean": "completed", "count": "completed"}
    assert (folder / "out/clean.txt").read_text() == "to be"
    assert (folder / "count.txt").read_text().split() == ["2"]
    place = (folder / "place.txt").read_text()
    assert place.startswith(str(machine.home.node)), "it ran elsewhere"
    raw.write_text("TO BE OR NOT")
    assert states() == {"clean": "completed", "count": "completed"}
    assert (folder / "count.txt").read_text().split() == ["4"]

    # What was ever done is kept, and comes back.
    raw.write_text("TO BE")
    (folder / "count.txt").unlink()
    assert states() == {"clean": "cached", "count": "cached"}
    assert (folder / "out/clean.txt").read_text() == "to be"
    assert (folder / "count.txt").read_text().split() == ["2"]
    names = [it["name"] for it in lab.json("datasets", "list")["items"]]
    assert len([name for name in names if name.startswith("flow-")]) == 2


def test_no_machine_gets_a_dataset_that_its_jobs_do_not_read(lab, machine):
    (lab.work / "words").write_text("some words")
    added = lab.json("datasets", "add", "unread", "words")
    digest = added["versions"][0]["digest"]
    for kind in (ContentKind.DATASET, ContentKind.CHUNK):
        request = wire.FetchContents(kind, [digest], "default")
        (answer,) = machine.ask(request)
        assert isinstance(answer, wire.Refused)


def test_a_job_that_needs_a_folder_waits_for_the_machine_that_has_it(lab, machine):
    job = run(lab, "--live", "true")
    why = lab.ok("why", job)
    assert "lab2: is another machine, and the job runs only where its folder" in why
    assert f"gpuyard nodes uncordon {lab.own}" in why
    lab.ok("cancel", job)


def test_a_folder_without_code_is_one_there_too(lab, machine):
    empty = lab.work / "empty"
    empty.mkdir()
    said = lab.ok("run", "pwd", cwd=empty)
    assert str(machine.home.node) in said


def test_a_job_has_a_gpu_of_a_joined_machine_and_no_other_node_has_it(
    lab, machine, fake_gpus
):
    uuid = "GPU-dddddddd-0000-0000-0000-000000000000"
    fake_gpus.add(uuid, name="Tesla T4", memory_mb=15360, cc="7.5")
    environment = {**fake_gpus.env(), "GPUYARD_NODE__DISCOVERY_S": "0.2"}

    def states():
        found = lab.json("gpus")["items"]
        return {gpu["node"]: gpu["state"] for gpu in found if gpu["uuid"] == uuid}

    with joined_machine(lab, "lab5", **environment):
        wait_until(lambda: states() == {"lab5": "idle"}, what="its GPU")
        words = ("--gpus", "1", "--", "printenv", "CUDA_VISIBLE_DEVICES")
        assert lab.ok("run", *words).strip() == uuid
        # A second machine says that it has the same one.
        with joined_machine(lab, "lab6", **environment):
            assert "is that of lab5 already" in nodes(lab)["lab6"]["reason"]
            assert states() == {"lab5": "idle"}
            fake_gpus.lose(uuid)
            wait_until(lambda: states() == {"lab5": "offline"}, what="it to be lost")
    assert not states()


def test_invitations_are_listed_and_revoked(lab):
    url, code = invite(lab, "--name", "guest")
    assert "guest" in lab.ok("nodes", "invitations")
    lab.ok("nodes", "revoke", "guest")
    (known,) = [
        one
        for one in lab.json("nodes", "invitations")["items"]
        if one["name"] == "guest"
    ]
    assert known["state"] == "over"
    guest = JoinedMachine(lab)
    try:
        with pytest.raises(GpuyardError):  # told so, or nobody listens any more
            guest.join(url, code)
    finally:
        guest.end()


def test_an_invitation_is_good_once_and_for_its_time(lab, machine):
    url, code = invite(lab, "--name", "once")
    first = JoinedMachine(lab)
    second = JoinedMachine(lab)
    try:
        first.join(url, code)
        with pytest.raises(RefusedError, match=r"was used .* from 127\.0\.0\.1, by"):
            second.join(url, code)
        with pytest.raises(RefusedError, match="has joined 127"):
            first.join(url, code)
        short = lab.json("nodes", "invite", "--expires", "0.05s")
        wait_until(lambda: time.time() > short["expires_at"], what="its end")
        with pytest.raises(RefusedError, match="has expired"):
            second.join(short["url"], short["code"])
        guessed = f"{code.partition('.')[0]}.{'a' * 32}"
        with pytest.raises(RefusedError, match="no such invitation"):
            second.join(url, guessed)
        other = f"{'0' * 64}.{code.partition('.')[2]}"
        with pytest.raises(RefusedError, match="has another fingerprint"):
            second.join(url, other)
        taken = lab.run("nodes", "invite", "--name", "lab2")
        assert "There is a node lab2 already" in taken.stderr
        assert not (second.home.membership / "server.json").exists()
    finally:
        first.end()
        second.end()
        lab.ok("nodes", "remove", "once")


def test_the_door_opens_only_to_certificates_of_the_instance(lab, machine, tmp_path):
    stranger = Authority.of(tmp_path)
    # Another authority has signed for the same node.
    key, csr = _request()
    signed = stranger.sign_for_node(csr, nodes(lab)["lab2"]["id"])
    file = tmp_path / "certificate.pem"
    file.write_text(pem_of(signed) + key)
    own = machine.home.membership / "certificate.pem"
    assert [_is_let_in(lab.port, each) for each in (None, file, own)] == [
        False,
        False,
        True,
    ]


def _is_let_in(port, certificate):
    """Whether the server says anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate)
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as connected,
            context.wrap_socket(connected) as tls,
        ):
            tls.sendall(wire_frames.encode(wire.FetchBlob("none")))
            return bool(tls.recv(1))
    except OSError:
        return False


def _request():
    from gpuyard.client.joining import _new_key

    return _new_key()


def hello(machine, **fields):
    return wire.Hello("node_of_others", "server", "boot", 64, 512.0, **fields)


def test_a_machine_is_whom_its_certificate_names_and_gets_only_what_is_its_own(
    lab, machine
):
    """A second machine, which says whatever it likes."""
    job = run(lab, "--checkpoint", "*.ck", "saves.py")
    lab.wait(job, "running")
    wait_until(lambda: lab.json("checkpoints", job)["items"], what="it to save")
    with lab.client() as client:
        spec = client.job(job).info
        attempt = spec.attempts[0].id
        code = lab.json("show", job)["spec"]["submitted_code"]
    liar = JoinedMachine(lab)
    try:
        node_id = liar.join(*invite(lab, "--name", "liar"))
        tree = wire.FetchContents(ContentKind.TREE, [code])
        store = wire.StoreBlob(attempt, "0" * 64, 1)
        for message in (tree, store, wire.FetchBlob(attempt)):
            (answer,) = liar.ask(message)
            assert isinstance(answer, wire.Refused)
        ended = wire.Ended(attempt, time.time(), None, exit_code=0)
        gpu = wire.GpuStatus("GPU-of-liar", 0, "NVIDIA T4", 15000)
        answers = liar.ask(hello(liar, gpus=[gpu]), wire.NumberedReport(1, ended))
        assert any(isinstance(each, wire.Welcome) for each in answers)
        found = nodes(lab)
        assert found["liar"]["id"] == node_id
        assert found["liar"]["cpus"] == 64
        assert found["lab2"]["state"] == "online"
        assert "server" not in found
        assert lab.job(job).state == "running"
        (too_old,) = liar.ask(hello(liar, version="0.99.0"))
        assert isinstance(too_old, wire.Refused)
        assert "at most one minor version apart" in too_old.reason
    finally:
        liar.end()
        lab.ok("nodes", "remove", "liar")
        lab.ok("cancel", job)


def test_the_second_of_two_machines_with_one_certificate_is_refused(lab, machine):
    twin = machine.copy()
    try:
        twin.start()
        refusal = wait_until(twin.refusal, what="it to be refused")
        assert "Another agent with the certificate of lab2 is connected" in refusal
        assert nodes(lab)["lab2"]["state"] == "online"
        assert not machine.refusal()
    finally:
        twin.end()


def test_drained_jobs_move_with_their_checkpoints_and_a_removed_node_is_out(
    lab, machine
):
    lab.ok("nodes", "cordon", "lab2")
    with joined_machine(lab, "lab3") as third, joined_machine(lab, "lab4") as fourth:
        lab.ok("nodes", "cordon", "lab3")
        moves = run(lab, "--checkpoint", "*.ck", "saves.py")
        stays = run(lab, "--retries", "1", "sleep", "600")
        for job in (moves, stays):
            lab.wait(job, "running")
        wait_until(lambda: lab.json("checkpoints", moves)["items"], what="it to save")
        lab.ok("nodes", "uncordon", "lab3")
        drained = lab.json("nodes", "drain", "lab4")
        assert drained["moved"] == [moves]
        assert drained["left"] == [stays]
        assert lab.wait(moves).state == "completed"
        assert lab.job(moves).node == nodes(lab)["lab3"]["id"]
        assert lab.job(stays).state == "running"
        # lab4 goes for good while a job runs there.
        lab.ok("nodes", "remove", "lab4")
        wait_until(lambda: lab.job(stays).node == nodes(lab)["lab3"]["id"], what="lab3")
        assert [each.reason for each in lab.job(stays).attempts] == [
            "attempt_lost",
            None,
        ]
        assert "lab4" not in nodes(lab)
        refusal = wait_until(fourth.refusal, what="it to be told")
        assert "lab4 was removed" in refusal
        lab.ok("cancel", stays)
        assert not third.refusal()
    lab.ok("nodes", "uncordon", "lab2")
    refused = lab.run("nodes", "remove", lab.own)
    assert "is the server's own machine" in refused.stderr
