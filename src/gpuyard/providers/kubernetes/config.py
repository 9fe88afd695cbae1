"""What `[providers.kubernetes]` may say."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gpuyard.config.settings import StorageSettings
from gpuyard.domain.validation import parse_model


class Toleration(BaseModel):
    """A taint that jobs may run in spite of, in Kubernetes' words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str | None = None
    operator: str = "Exists"
    value: str | None = None
    effect: str | None = None


class Pool(BaseModel):
    """Nodes that the cluster's autoscaler makes when they are needed: what each has, and what labels choose them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


class KubernetesConfig(BaseModel):
    """How to reach the cluster, and how jobs look there.

    `kubeconfig`: a file; unset, the pod's own account where gpuyard runs in the cluster, else `~/.kube/config`.
    `queue`: Kueue's LocalQueue. `priority_classes`: by our priority (1 to 5), the name of a PriorityClass.
    `volumes`: by folder in the container, `pvc:NAME` or `pvc:NAME/FOLDER`; every job has these. `host_paths`: jobs may
    mount folders of the nodes. `pools`: what may be had though no node of it is there now. `prices`: an hour of a node,
    by instance type, or of one GPU, by product label.
    `spool`: a folder of this host that the claim `spool_claim` (`NAME` or `NAME/FOLDER`) holds, too: jobs get a copy of
    their folder there, and what they save comes back; so do the workspaces they use.
    A finished Job is removed by the cluster after `ttl_s` if gpuyard does not come back. A gang of which only a part
    has been placed after `gang_patience_s` is taken back whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    provider: ClassVar[str] = "kubernetes"

    home: str
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
    writable_root: bool = False
    pools: dict[str, Pool] = Field(default_factory=dict[str, Pool])
    prices: dict[str, Decimal] = Field(default_factory=dict[str, Decimal])
    currency: str = "USD"
    ttl_s: int = Field(default=86400, ge=60)
    gang_patience_s: float = Field(default=300.0, gt=0)
    max_pending: int = Field(default=8, ge=1)
    concurrency: int = Field(default=8, ge=1)
    poll_s: float = Field(default=0.5, gt=0)
    timeout_s: float = Field(default=30.0, gt=0)

    @field_validator("priority_classes")
    @classmethod
    def _are_priorities(cls, value: dict[str, str]) -> dict[str, str]:
        strange = sorted(set(value) - set("12345"))
        if strange:
            raise ValueError(f"names priority {strange[0]!r}; priorities are 1 to 5")
        return value

    @field_validator("volumes")
    @classmethod
    def _are_claims(cls, value: dict[str, str]) -> dict[str, str]:
        for inside, source in value.items():
            if not inside.startswith("/") or not source.removeprefix("pvc:") or not source.startswith("pvc:"):
                raise ValueError(
                    f"{inside!r} = {source!r} is no volume; write '/data' = 'pvc:NAME' or 'pvc:NAME/FOLDER'"
                )
        return value

    @model_validator(mode="after")
    def _spool_is_both(self) -> "KubernetesConfig":
        if (self.spool is None) != (self.spool_claim is None):
            lacking = "spool" if self.spool is None else "spool_claim"
            raise ValueError(f"@{lacking}@is missing; spool is a folder here, and spool_claim the claim that holds it")
        if self.spool and "/workspace" in self.volumes:
            raise ValueError("@volumes@has '/workspace', which is where jobs with a workspace find it; choose another")
        return self

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "KubernetesConfig":
        """InvalidInputError names the field that is wrong."""
        return parse_model(cls, dict(config))
