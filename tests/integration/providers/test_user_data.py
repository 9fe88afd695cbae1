"""The first boot of a rented machine: the rendered user data is run for real, with
stand-ins for the programs that a test cannot have.
"""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import gpuyard.providers.instances
from gpuyard.domain.errors import InvalidInputError
from gpuyard.providers.instances.boot_plan import BootPlan
from gpuyard.providers.instances.cloud_init import MOST_BYTES, user_data
from gpuyard.providers.skypilot.machines import JOB_COMMAND, JOB_FILE, job_script
from tests.support.cloud_machine import cloud_machine
from tests.support.components import require
from tests.support.wait import wait_until

NASTY = "a b'c\"d$(touch /run/x)`id`\\n\n;&|<>*?~#!%{}[]\t-é\r\nEND_WHEN_SILENT\nz"
PLAN = BootPlan(
    join_url="https://192.0.2.1:7434",
    join_code="code",
    node_name="rented",
    install="gpuyard==1.0",
    silence_s=600,
    needs_gpus=0,
    needs_docker=False,
    spot=False,
    cloud="aws",
)
TWO_GPUS = "echo 'GPU 0: NVIDIA A10G (UUID: GPU-1)'; echo 'GPU 1: NVIDIA A10G'"
SCRIPT = Path(gpuyard.providers.instances.__file__).with_name("end_when_silent.sh")
DEBIAN = "ID=debian\nVERSION_ID=12\n"


def booted(machine, plan, **programs):
    """Boot a machine whose image has an environment with stand-ins for gpuyard."""
    machine.add_gpuyard(**{"gpuyard": "", **programs})
    machine.start(user_data(plan))


def wait_for(machine, words):
    """Wait until it has said this; show all of it if it does not."""

    def is_said():
        assert machine.is_on
        return words in machine.console.read_text()

    try:
        wait_until(is_said, what=words)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{machine.said}") from None


def test_each_string_reaches_the_commands_as_it_is():
    plan = replace(
        PLAN,
        join_url=f"https://{NASTY}",
        join_code=f"-{NASTY}",
        node_name=NASTY,
        install=f"--{NASTY}",
        cloud=NASTY,
        spot=True,
    )
    with cloud_machine({"useradd": ""}) as machine:
        booted(machine, plan, gpuyard="cat >/run/code")
        wait_for(machine, "its agent runs")

        (pip,) = machine.calls("pip")
        assert pip[-2:] == ["--", plan.install]
        (join,) = machine.calls("gpuyard")
        # No argument, which every user of the machine sees, has the code.
        words = ["join", "--system", "--code-file", "-", "--", plan.join_url]
        assert join == words
        said = machine.file("/run/code").read_bytes()
        assert said == f"{plan.join_code}\n".encode()
        assert not machine.file("/run/x").exists()
        assert plan.join_code not in machine.said


def test_systemd_finds_no_fault_in_what_ends_the_machine(tmp_path):
    verifier = shutil.which("systemd-analyze")
    require("systemd", verifier is not None)
    with cloud_machine({"useradd": ""}) as machine:
        booted(machine, PLAN)
        wait_for(machine, "its agent runs")
        for unit in ("gpuyard-silence.service", "gpuyard-silence.timer"):
            text = machine.file(f"/etc/systemd/system/{unit}").read_text()
            # systemd looks for the program on the machine of the test.
            text = text.replace("/usr/local/sbin/gpuyard-end-when-silent", "/bin/true")
            (tmp_path / unit).write_text(text)
    done = subprocess.run(
        [verifier, "verify", tmp_path / "gpuyard-silence.timer"],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        check=False,
    )
    faults = [line for line in done.stderr.splitlines() if "gpuyard" in line]
    assert (done.returncode, faults) == (0, []), done.stderr


def test_an_image_that_has_everything_gets_nothing_installed():
    plan = replace(PLAN, needs_gpus=2, needs_docker=True, spot=True)
    programs = {"docker": "", "nvidia-smi": TWO_GPUS, "nvidia-ctk": ""}
    with cloud_machine({"useradd": "", "usermod": "", **programs}) as machine:
        booted(machine, plan)
        wait_for(machine, "its agent runs")

        assert machine.calls("apt-get") == []
        assert machine.calls("nvidia-ctk") == []
        assert machine.calls("usermod") == [["-a", "-G", "docker", "gpuyard-job"]]
        settings = machine.file("/var/lib/gpuyard-node/gpuyard.toml").read_text()
        assert 'spot_notices = "aws"' in settings


def test_what_the_image_lacks_is_installed():
    plan = replace(PLAN, needs_gpus=2, needs_docker=True)
    pythons = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")
    # Too old, or without its module venv.
    lacking = dict.fromkeys(pythons, "exit 1")
    lacking |= {"docker": "exit 1", "nvidia-smi": "exit 127", "curl": ""}
    own = dict.fromkeys(("useradd", "usermod", "modprobe"), "")
    with cloud_machine({**lacking, **own}) as machine:
        machine.write("/etc/os-release", DEBIAN)
        environment = machine.add_package("venv", {"pip": "", "gpuyard": ""})
        makes = f'[ "$1" != -m ] || (mkdir -p "$3/bin" && cp {environment}/* "$3/bin")'
        machine.add_package("python3-venv", {"python3": makes})
        machine.add_package("cuda-drivers", {"nvidia-smi": TWO_GPUS})
        machine.add_package("docker.io", {"docker": ""})
        machine.add_package("nvidia-container-toolkit", {"nvidia-ctk": ""})
        machine.start(user_data(plan))
        wait_for(machine, "its agent runs")

        assert ["-m", "venv", "/opt/gpuyard"] in machine.calls("python3")
        (curl,) = machine.calls("curl")
        assert "/compute/cuda/repos/debian12/" in curl[-1]
        assert machine.calls("nvidia-ctk") == [
            ["runtime", "configure", "--runtime=docker"]
        ]
        assert machine.calls("gpuyard")


@pytest.mark.parametrize(
    ("plan", "stand_ins", "gpuyard", "why"),
    [
        (
            replace(PLAN, needs_gpus=3),
            {"nvidia-smi": TWO_GPUS},
            {},
            "this machine has 2 GPUs that work, and 3 are needed",
        ),
        (
            PLAN,
            {},
            {"pip": "echo No matching distribution; exit 1"},
            "pip does not install gpuyard==1.0",
        ),
        (PLAN, {}, {"gpuyard": "exit 4"}, "the server did not take this machine"),
        (
            replace(PLAN, needs_gpus=1),
            {"nvidia-smi": "exit 9", "curl": "exit 6"},
            {},
            "NVIDIA's packages cannot be reached",
        ),
    ],
    ids=["gpus", "pip", "join", "packages"],
)
def test_a_step_that_fails_says_why_and_ends_the_machine(plan, stand_ins, gpuyard, why):
    with cloud_machine({"useradd": "", **stand_ins}) as machine:
        machine.write("/etc/os-release", DEBIAN)
        booted(machine, plan, **gpuyard)
        machine.wait_until_off()
        assert f"rented: failed: {why}" in machine.console.read_text(), machine.said


def test_an_image_of_another_system_must_have_all_that_is_needed():
    with cloud_machine({"nvidia-smi": "exit 9"}) as machine:
        machine.write("/etc/os-release", "ID=fedora\n")
        booted(machine, replace(PLAN, needs_gpus=1))
        machine.wait_until_off()
        assert "only on Ubuntu and Debian" in machine.console.read_text()
        assert machine.calls("apt-get") == []


def test_a_step_that_hangs_is_ended_by_the_silence():
    with cloud_machine() as machine:
        booted(machine, replace(PLAN, silence_s=2), pip="sleep 600")
        machine.wait_until_off()
        assert "the server has been silent for" in machine.console.read_text()


def uptime():
    return float(Path("/proc/uptime").read_text().split()[0])


@pytest.mark.parametrize(
    ("heard", "ends"),
    [
        (lambda: f"{uptime() * 0.9:.2f}", False),
        (lambda: f"{uptime() * 0.2:.2f}", True),
        # Nothing that can be read counts from the boot, as does the time of another.
        (lambda: None, True),
        (lambda: "", True),
        (lambda: "soon", True),
        (lambda: f"{uptime() + 1e6:.2f}", True),
        (lambda: "9" * 40, True),
    ],
    ids=["heard", "silent", "never", "empty", "broken", "other boot", "endless"],
)
def test_silence_is_measured_by_no_clock_that_can_be_set(tmp_path, heard, ends):
    for name in ("poweroff", "sleep"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/calls\n'
        )
        (tmp_path / name).chmod(0o755)
    file = tmp_path / "heartbeat"
    text = heard()
    if text is not None:
        file.write_text(text)
        # What a wrong clock would make of it.
        os.utime(file, (0, 0))
    done = subprocess.run(
        ["sh", SCRIPT, str(int(uptime() / 2)), file],
        env={"PATH": f"{tmp_path}:{os.defpath}"},
        capture_output=True,
        text=True,
        check=False,
    )
    calls = tmp_path / "calls"
    said = calls.read_text() if calls.exists() else ""
    wanted = "poweroff\nsleep 120\npoweroff -f -f\n" if ends else ""
    assert said == wanted, done


def test_a_script_that_no_cloud_takes_is_refused():
    with pytest.raises(InvalidInputError, match="clouds accept 16384"):
        user_data(replace(PLAN, install="x" * MOST_BYTES))
    with pytest.raises(InvalidInputError, match="NUL"):
        user_data(replace(PLAN, node_name="a\0b"))
    assert len(user_data(PLAN).encode()) < MOST_BYTES


def test_skypilots_job_goes_on_until_the_server_is_silent():
    programs = {"sudo": '"$@" && over', "over": "", "useradd": ""}
    with cloud_machine(programs) as machine:
        machine.add_gpuyard(gpuyard="")
        home = "/home/sky"
        script = job_script(user_data(PLAN), silence_s=1)
        machine.write(JOB_FILE.replace("~", home), script)
        machine.start(f"export HOME={home}\n{JOB_COMMAND}")
        wait_for(machine, "its agent runs")
        wait_until(lambda: machine.calls("over"), what="SkyPilot's job to end")

        changes = "/etc/systemd/system/gpuyard-silence.service.d/after-skypilot.conf"
        lines = machine.file(changes).read_text().splitlines()
        heartbeat = "/run/gpuyard-heartbeat"
        assert lines[-1] == (
            f"ExecStart=/usr/local/sbin/gpuyard-end-when-silent 901 {heartbeat}"
        )
        # Everybody on a machine can read its command lines.
        assert machine.calls("sudo") == [["sh", f"{home}/.gpuyard-job.sh"]]
        assert machine.is_on
