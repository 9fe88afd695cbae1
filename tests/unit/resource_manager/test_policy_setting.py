"""The residency policy that the settings name."""

from gpuyard.config.settings import Settings
from gpuyard.residency.cost_policy import CostPolicy
from gpuyard.residency.policies import ThresholdPolicy
from gpuyard.resource_manager.residents import policy_of


def settings(policy: str) -> Settings:
    return Settings.model_validate(
        {
            "residency": {"policy": policy},
            "resource_manager": {
                "eviction_policy": {"min_script_queue_for_evict": 7},
            },
        }
    )


def test_the_limit_of_the_document_reaches_the_policies_that_use_it() -> None:
    assert policy_of(settings("threshold")) == ThresholdPolicy(min_scripts=7)
    assert policy_of(settings("round_robin")) == ThresholdPolicy(min_scripts=7)


def test_cost_is_the_default() -> None:
    assert policy_of(Settings()) == CostPolicy()
