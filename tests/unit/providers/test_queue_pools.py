"""Whose the nodes in an external queue are, and until when they live."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.config.pools import PoolSettings
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.pool import KubernetesPool
from gpuyard.providers.queue_pool import older_label
from gpuyard.providers.slurm.config import SlurmSettings
from gpuyard.providers.slurm.pool import SlurmPool
from tests.support.fake_pool import FakeOwner

NONE: Any = None
OWNER = FakeOwner("poolnode_1")


@pytest.mark.parametrize(
    ("label", "is_own"),
    [
        (f"poolnode_9@{OWNER.installation}", True),
        ("poolnode_1@00000000", False),
        ("poolnode_1", False),
        (f"attempt_1@{OWNER.installation}", False),
        # Another instance may have its home at the same path.
        (f"poolnode_1@{older_label(Path('/home/me'))}", True),
        (f"poolnode_9@{older_label(Path('/home/me'))}", False),
    ],
)
def test_a_job_in_slurm_is_of_the_instance_that_its_comment_names(
    label: str, is_own: bool
) -> None:
    settings = SlurmSettings(home="/home/me")
    pool = PoolSettings(provider="slurm")
    hands = SlurmPool(pool, settings, NONE, NONE, NONE, Path("/spool"), OWNER)
    assert hands.is_own(label) == is_own


def test_the_lifetime_of_a_pod_counts_while_it_waits_for_a_node() -> None:
    settings = KubernetesConfig(home="/home/me")
    api: Any = SimpleNamespace(ahead_s=30.0)
    pool = PoolSettings(provider="kubernetes", lifetime=3600.0)
    hands = KubernetesPool(pool, settings, api, NONE, OWNER)
    labels = {"labels": {"gpuyard.dev/pool-node": "poolnode_1"}}
    job = {"metadata": labels, "status": {"startTime": "1970-01-01T01:00:00Z"}}
    pod = {"metadata": labels, "status": {"startTime": "1970-01-01T01:10:00Z"}}
    machine = hands.machine_of(job, pod)
    assert machine.began_at == 4200.0 - 30.0
    assert machine.ends_at == 3600.0 - 30.0 + 3600.0
