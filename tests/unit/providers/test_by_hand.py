"""What a person types where gpuyard can neither run a command beside a job nor reach its
ports.
"""

from pathlib import Path
from typing import Any

import pytest

from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.docker.provider import DockerProvider
from gpuyard.providers.kubernetes.provider import KubernetesProvider
from gpuyard.providers.slurm.provider import SlurmProvider

CASES: list[tuple[type[GpuProviderInterface], dict[str, Any], str, str, str]] = [
    (
        DockerProvider,
        {},
        "gpuyard-a1",
        "",
        "connect to port 8888 there",
    ),
    (
        DockerProvider,
        {"host": "unix:///run/d.sock"},
        "gpuyard-a1",
        "",
        "`docker -H unix:///run/d.sock inspect",
    ),
    (
        SlurmProvider,
        {},
        "41",
        "`srun --jobid 41 --overlap --pty COMMAND`.",
        "`ssh -N -L 8888:127.0.0.1:8888 NODE`",
    ),
    (
        SlurmProvider,
        {"host": "login", "spool": "/shared"},
        "41_7",
        "`srun --jobid $(squeue -h -j 41_7 -o %A) --overlap --pty COMMAND` on login",
        "`ssh -J login -N -L 8888:127.0.0.1:8888 NODE`",
    ),
    (
        KubernetesProvider,
        {"namespace": "ml", "kubeconfig": "/k"},
        "gpuyard-a1",
        "",
        "`kubectl --kubeconfig /k -n ml port-forward job/gpuyard-a1 8888`",
    ),
]


@pytest.mark.parametrize(("kind", "config", "reference", "command", "port"), CASES)
def test_the_names_are_filled_in(
    tmp_path: Path,
    kind: type[GpuProviderInterface],
    config: dict[str, Any],
    reference: str,
    command: str,
    port: str,
) -> None:
    provider = kind({"home": str(tmp_path), **config})
    # Docker and Kubernetes run commands themselves.
    assert bool(command) == bool(provider.exec_by_hand(reference))
    assert command in provider.exec_by_hand(reference)
    assert port in provider.forward_by_hand(reference, 8888)
