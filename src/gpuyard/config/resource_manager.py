"""The table `[resource_manager]` of the settings: the seed document's own."""

from enum import StrEnum

from pydantic import Field

from gpuyard.config.sections import Period, Seconds, SettingsSection
from gpuyard.domain.task_types import LlmTaskType


class GpuRole(StrEnum):
    """What a GPU is for: the brain's model first, or other models and scripts first. It
    is a preference; any GPU serves for everything if no other is free. A brain's model
    on a brain's GPU is never evicted.
    """

    BRAIN_PRIMARY = "brain_primary"
    BRAIN_SECONDARY = "brain_secondary"
    WORKER_OR_SCRIPT = "worker_or_script"


_BRAIN_RANKS = {
    GpuRole.BRAIN_PRIMARY: 2,
    GpuRole.BRAIN_SECONDARY: 1,
    GpuRole.WORKER_OR_SCRIPT: 0,
}


class EvictionSettings(SettingsSection):
    """When scripts evict models. `min_script_queue_for_evict` is for the policies
    `threshold` and `round_robin`.

    With `prefer_idle_llm_eviction`, only idle models are evicted while the policy finds
    that enough; without it, the model that loads again fastest is evicted, be it idle
    or busy. A busy one answers its requests first.
    """

    min_script_queue_for_evict: int = Field(default=5, ge=0)
    prefer_idle_llm_eviction: bool = True
    never_evict_brain: bool = True


class BatchSettings(SettingsSection):
    """A batch with at least this many items has the GPUs for itself, unless it says
    otherwise; afterwards the models that were loaded before are loaded again.
    """

    auto_exclusive_threshold: int = Field(default=50, ge=1)
    reload_llms_after_batch: bool = True


class ResourceManagerSettings(SettingsSection):
    """The seed document's own table. `gpu_count` is only advice: the discovered GPUs
    count, and `gpuyard doctor` tells if they are fewer. `gpu_roles` are by index or
    UUID.

    `boot_times` are in seconds, by model or by what a script loads (`whisper:small.en`,
    `sentence-transformers`, or the script's own name). Those of models apply until they
    are measured. After each job, its GPU gets no other for `cooling_s`, and after each
    answer, a model takes no other request in that slot for so long.
    `default_models`: by the type of a task, the model for tasks that name none.
    """

    gpu_count: int | None = Field(default=None, ge=0)
    gpu_roles: dict[str, GpuRole] = Field(default_factory=dict[str, GpuRole])
    boot_times: dict[str, Period] = Field(default_factory=dict[str, Period])
    cooling_s: Seconds = 0.0
    default_models: dict[LlmTaskType, str] = Field(
        default_factory=dict[LlmTaskType, str]
    )
    eviction_policy: EvictionSettings = EvictionSettings()
    batch_settings: BatchSettings = BatchSettings()

    def is_brain(self, index: int, uuid: str) -> bool:
        """True when the brain's models on this GPU are never evicted."""
        role = self.gpu_roles.get(uuid) or self.gpu_roles.get(str(index))
        has_brain_role = role in (GpuRole.BRAIN_PRIMARY, GpuRole.BRAIN_SECONDARY)
        return has_brain_role and self.eviction_policy.never_evict_brain

    @property
    def brain_ranks(self) -> dict[str, int]:
        """By index or UUID: 2 for a primary GPU of the brain, 1 for a secondary one, 0
        for any other.
        """
        return {gpu: _BRAIN_RANKS[role] for gpu, role in self.gpu_roles.items()}
