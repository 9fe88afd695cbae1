"""What a Slurm cluster offers, and what an attempt asks of it."""

from collections.abc import Sequence
from dataclasses import replace

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import InsufficientResourcesError
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.offers import Offer
from gpuyard.providers.placing import has_gpus_of_kind
from gpuyard.providers.shared_call import SharedCall
from gpuyard.providers.slurm.client import SlurmClient, SlurmRequest, limit_s
from gpuyard.providers.slurm.config import SlurmSettings
from gpuyard.providers.slurm.records import Hardware, name_hardware

# Slurm's own time limit comes so long after the job's timeout and its grace.
_TIME_MARGIN_S = 240.0


class SlurmSupply:
    """The cluster's partitions, kinds of nodes and time limits, as last asked for."""

    def __init__(self, slurm: SlurmClient, settings: SlurmSettings) -> None:
        self._slurm = slurm
        self._settings = settings
        self._time_limits: dict[str, float | None] = {}
        self._hardware: dict[str, Hardware] = {}
        self.refresh = SharedCall(self._load)

    @property
    def is_loaded(self) -> bool:
        """False until the cluster has answered once."""
        return bool(self._time_limits)

    async def _load(self) -> None:
        found = await self._slurm.hardware()
        named = name_hardware(found)
        self._hardware = {f"slurm/{name}": item for name, item in named.items()}
        self._time_limits = {item.partition: item.limit_s for item in found}
        for item in found:
            if item.default:
                self._time_limits[""] = item.limit_s

    def offers(self) -> Sequence[Offer]:
        """One offer for each partition and kind of node."""
        return [
            self._offer(offer_id, item) for offer_id, item in self._hardware.items()
        ]

    def _offer(self, offer_id: str, item: Hardware) -> Offer:
        known = self._settings.gpus.get(item.gpu)
        per_gpu = known.price_per_hour if known else None
        price = None if per_gpu is None else per_gpu * item.gpus
        return Offer(
            offer_id,
            "slurm",
            item.gpu,
            item.gpus,
            known.memory_gb if known else 0.0,
            "",
            item.cpus,
            item.memory_gb,
            item.nodes,
            price_per_hour=price,
            currency=self._settings.currency,
            price_source="gpuyard.toml" if price is not None else "",
            divisible=True,
            workspaces=True,
            artifacts=True,
            datasets=True,
            problem=item.why_down,
        )

    def limit_s(self, order: AttemptOrder) -> float | None:
        """Seconds from its start until Slurm ends it; None when Slurm never does."""
        most_s = self._time_limits.get(self._partition(order))
        return limit_s(order, order.grace_s + _TIME_MARGIN_S, most_s) or most_s

    def request(self, order: AttemptOrder) -> SlurmRequest:
        """What to ask Slurm for; InsufficientResourcesError for GPUs it has not."""
        partition = self._partition(order)
        offered = self._hardware.get(order.offer)
        gpu = offered.gpu if offered else self._gpu(order.gpu_spec)
        margin_s = order.grace_s + _TIME_MARGIN_S
        most_s = self._time_limits.get(partition)
        request = SlurmRequest.of(order, gpu, margin_s, most_s)
        named = {
            name: self._option(order, name) for name in ("account", "qos", "constraint")
        }
        return replace(request, partition=partition, **named)

    def _option(self, order: AttemptOrder, name: str) -> str:
        own = order.provider_options.get(name)
        return str(own or getattr(self._settings, name) or "")

    def _partition(self, order: AttemptOrder) -> str:
        offered = self._hardware.get(order.offer)
        if offered and not order.provider_options.get("partition"):
            return offered.partition
        return self._option(order, "partition")

    def _gpu(self, need: GpuSpec) -> str:
        """The cluster's name for GPUs of the size that is asked for, or else for the
        type. Slurm itself refuses a type that it has not.
        """
        if not (need.gpu_count and need.memory_gb):
            return self._gres(need.gpu_type or "")
        suiting = [
            offer.gpu for offer in self.offers() if has_gpus_of_kind(offer, need)
        ]
        if suiting:
            return suiting[0]
        kind = need.gpu_type or "GPU"
        raise InsufficientResourcesError(
            f"No node of the cluster is known to have a {kind} with"
            f" {need.memory_gb:g} GB. Slurm tells no sizes: name those of its types in"
            " providers.slurm.gpus.",
            "slurm",
            need,
        )

    def _gres(self, gpu_type: str) -> str:
        """The cluster's own name for a type of GPU; lower case when it has none."""
        offered = {item.gpu for item in self._hardware.values()}
        for name in sorted(offered | self._settings.gpus.keys()):
            if name.lower() == gpu_type.lower():
                return name
        return gpu_type.lower()
