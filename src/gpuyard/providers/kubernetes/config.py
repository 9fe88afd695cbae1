"""What `[providers.kubernetes]` may say."""

import os
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from gpuyard.config.paths import Home
from gpuyard.config.settings import StorageSettings
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.validation import parse_model

USUAL_USER = 1000
"""Who programs run as where the settings do not say. Namespaces that enforce the Pod
Security Standard `restricted` refuse root.
"""


class Toleration(StrictModel):
    """A taint that jobs tolerate, as Kubernetes writes it."""

    key: str | None = None
    operator: str = "Exists"
    value: str | None = None
    effect: str | None = None

    def matches(self, taint: Mapping[str, Any]) -> bool:
        """Whether a pod with this toleration may run on a node with this taint."""
        if self.key is not None and self.key != taint.get("key"):
            return False
        if self.effect is not None and self.effect != taint.get("effect"):
            return False
        same_value = (self.value or "") == (taint.get("value") or "")
        return self.operator == "Exists" or same_value


class Pool(StrictModel):
    """Nodes that the cluster's autoscaler adds when they are needed: the labels that
    select them, and what each has.
    """

    node_selector: dict[str, str] = Field(min_length=1)
    gpu: str = ""
    gpus: int = Field(default=0, ge=0)
    gpu_memory_gb: float = Field(default=0.0, ge=0)
    cpus: float = Field(gt=0)
    memory_gb: float = Field(gt=0)
    nodes: int = Field(default=1, ge=1)
    region: str = ""
    spot: bool = False
    price_per_hour: Decimal | None = Field(default=None, ge=0)
    wait_s: float | None = Field(default=None, ge=0)


class KubernetesConfig(StrictModel):
    """How to reach the cluster, and the settings of its Jobs.

    - `kubeconfig`: a file. Unset: the pod's own account where gpuyard runs in the
      cluster, else `~/.kube/config`.
    - `queue`: Kueue's LocalQueue.
    - `priority_classes`: the PriorityClass for each of our priorities, 1 to 5.
    - `volumes`: `pvc:NAME` or `pvc:NAME/FOLDER`, by folder in the container. Every job
      has them.
    - `host_paths`: whether jobs may mount folders of the nodes.
    - `tolerations`: taints that jobs tolerate. Those of nodes with GPUs are tolerated
      only by jobs that ask for GPUs, unless nothing else suits.
    - `run_as_user`, `fs_group`: the user id of programs, and the group that may write
      to their volumes. Unset: see `user` and `group`.
    - `pools`: nodes that an autoscaler can add.
    - `prices`: per hour, of a node by its instance type, or of one GPU by its product
      label.
    - `spool`: a folder of this host that is also in the claim `spool_claim` (`NAME` or
      `NAME/FOLDER`). Jobs get a copy of their folder there, and their checkpoints and
      changes in workspaces are copied back.
    - `dataset_cache_gb`: how much copies of datasets may take there.
    - `ttl_s`: the cluster removes a finished Job after this time, in case gpuyard does
      not come back.
    - `gang_patience_s`: a job on several nodes is withdrawn when only some of its pods
      have been placed after this time.
    - `force_after_s`: pods that were told to end are deleted by force when they are
      still there so long after their grace.
    - `node_lost_s`: a pod that the cluster deletes, and that is still there after this
      time and its checkpoint grace, is on a node that does not answer. Its job is lost.
    - `watch_s`, `watch_silence_s`: how long one watch lasts, and how long it may say
      nothing until it is begun again.
    - `log_silence_s`: how long a log may say nothing until it is opened again.
    """

    provider: ClassVar[str] = "kubernetes"

    home: str = Field(default_factory=lambda: str(Home.find().root))
    storage: StorageSettings = StorageSettings()
    enabled: bool = True
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str = "gpuyard"
    queue: str | None = None
    priority_classes: dict[str, str] = Field(default_factory=dict[str, str])
    service_account: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    runtime_class: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    node_selector: dict[str, str] = Field(default_factory=dict[str, str])
    tolerations: tuple[Toleration, ...] = (Toleration(key="nvidia.com/gpu"),)
    volumes: dict[str, str] = Field(default_factory=dict[str, str])
    host_paths: bool = False
    spool: str | None = None
    spool_claim: str | None = None
    dataset_cache_gb: float = Field(default=100.0, gt=0)
    writable_root: bool = False
    run_as_user: int | None = Field(default=None, ge=0)
    fs_group: int | None = Field(default=None, ge=0)
    pools: dict[str, Pool] = Field(default_factory=dict[str, Pool])
    prices: dict[str, Decimal] = Field(default_factory=dict[str, Decimal])
    currency: str = "USD"
    ttl_s: int = Field(default=86400, ge=60)
    gang_patience_s: float = Field(default=300.0, gt=0)
    force_after_s: float = Field(default=15.0, gt=0)
    node_lost_s: float = Field(default=60.0, gt=0)
    # The API server gives a sign of life about every minute.
    watch_s: int = Field(default=300, ge=1)
    watch_silence_s: float = Field(default=75.0, gt=0)
    log_silence_s: float = Field(default=300.0, gt=0)
    max_pending: int = Field(default=8, ge=1)
    concurrency: int = Field(default=8, ge=1)
    poll_s: float = Field(default=0.5, gt=0)
    timeout_s: float = Field(default=30.0, gt=0)

    @property
    def user(self) -> int | None:
        """The user id of programs; None for that of the image.

        With a spool they run as gpuyard does, which reads and removes what they write
        there. If gpuyard is root, they run as the user of their image.
        """
        if self.run_as_user is not None:
            return self.run_as_user
        return (os.getuid() or None) if self.spool else USUAL_USER

    @property
    def group(self) -> int | None:
        """The group that may write to volumes; None to leave them as they are."""
        if self.fs_group is not None:
            return self.fs_group
        return None if self.spool else (self.user or None)

    @field_validator("priority_classes")
    @classmethod
    def _are_priorities(cls, value: dict[str, str]) -> dict[str, str]:
        unknown = sorted(set(value) - set("12345"))
        if unknown:
            raise ValueError(f"names priority {unknown[0]!r}; priorities are 1 to 5")
        return value

    @field_validator("volumes")
    @classmethod
    def _are_claims(cls, value: dict[str, str]) -> dict[str, str]:
        for inside, source in value.items():
            is_claim = source.startswith("pvc:") and source != "pvc:"
            if not inside.startswith("/") or not is_claim:
                raise ValueError(
                    f"{inside!r} = {source!r} is no volume; write '/data' = 'pvc:NAME'"
                    " or 'pvc:NAME/FOLDER'"
                )
        return value

    @model_validator(mode="after")
    def _has_spool_and_claim(self) -> "KubernetesConfig":
        if (self.spool is None) != (self.spool_claim is None):
            missing = "spool" if self.spool is None else "spool_claim"
            raise ValueError(
                f"@{missing}@is missing; spool is a folder here, and spool_claim the"
                " claim that holds it"
            )
        if self.spool and "/workspace" in self.volumes:
            raise ValueError(
                "@volumes@has '/workspace', which is where jobs with a workspace find"
                " it; choose another"
            )
        return self

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "KubernetesConfig":
        """InvalidInputError names the field that is wrong."""
        return parse_model(cls, dict(config))
