"""The order for a provider, and S2's form of it."""

from dataclasses import fields, replace

import pytest

from gpuyard.domain.attempt_order import (
    AttemptOrder,
    ResumePoint,
    config_from_order,
    order_from_config,
)
from gpuyard.domain.jobconfig import GpuSpec, JobConfig
from gpuyard.domain.jobspec import CheckpointSpec

FULL = AttemptOrder(
    attempt_id="attempt_1",
    name="train",
    command=("python3", "train.py"),
    job_id="job_1",
    project="vision",
    user="ann",
    token=3,
    priority=4,
    image="pytorch:24.02",
    stdin=b"input",
    interactive=True,
    environment={"A": "b"},
    carried_environment="a" * 64,
    code="c" * 64,
    volumes={"/data": "/mnt/data"},
    workdir="/work",
    workspace="default/corpus",
    workspace_folder="/workspaces/default/corpus",
    gpu_spec=GpuSpec(gpu_type="A100", gpu_count=2, vcpus=4, ram_gb=16),
    spot=True,
    nodes=2,
    offer="cloud/a100",
    node_id="node_1",
    gpu_uuids=("GPU-a", "GPU-b"),
    shares_gpus=True,
    prefetch_group="shape",
    prefetched=True,
    timeout_s=90.0,
    max_silence_s=30.0,
    log_limit_gb=2.0,
    grace_s=5.0,
    checkpoint=CheckpointSpec(path="out/*.pt"),
    resume_from=ResumePoint("f" * 64, "step-10", True),
    labels={"team": "vision"},
)


# Secrets become variables, options come from the owner; S2's interface says who
# retries. The others only an agent knows.
NOT_IN_S2 = {
    *("secrets", "provider_options", "retries"),
    *("artifacts", "datasets", "packages", "shares"),
}


def test_the_full_order_says_something_of_each_field_that_s2_can_carry():
    bare = AttemptOrder(attempt_id="", name="", command=())
    unsaid = {
        field.name
        for field in fields(AttemptOrder)
        if getattr(FULL, field.name) == getattr(bare, field.name)
    }
    assert unsaid == NOT_IN_S2


def test_s2s_form_of_an_order_means_the_same_order():
    config = config_from_order(FULL)
    assert config.timeout_minutes == 1.5
    back = order_from_config(config)
    assert replace(back, provider_options={}) == FULL


def test_a_bare_job_config_gets_an_attempt_id_and_runs_on_one_node():
    order = order_from_config(JobConfig(name="j", command=("true",)))
    assert order.attempt_id.startswith("attempt_")
    assert (order.nodes, order.offer, order.node_id, order.gpu_uuids) == (1, "", "", ())
    assert (order.timeout_s, order.resume_from) == (None, None)


def test_options_of_the_owner_are_kept():
    order = replace(FULL, provider_options={"partition": "gpu"})
    options = order_from_config(config_from_order(order)).provider_options
    assert options["partition"] == "gpu"


def test_a_job_config_says_how_often_its_provider_tries_again():
    config = JobConfig(name="j", command=("true",), retry_count=3)
    assert order_from_config(config).retries == 3
    # gpuyard's own attempts are tried again by the controller.
    assert config_from_order(FULL).retry_count == 0


def test_a_choice_of_gpus_is_dropped_with_a_warning():
    environment = {"CUDA_VISIBLE_DEVICES": "0", "EPOCHS": "10"}
    config = JobConfig(name="j", command=("true",), environment=environment)
    with pytest.warns(UserWarning, match="CUDA_VISIBLE_DEVICES was dropped"):
        assert order_from_config(config).environment == {"EPOCHS": "10"}
