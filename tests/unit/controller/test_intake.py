"""Intake: jobs that are submitted together, their parents, their tiers."""

import pytest

from gpuyard.controller.intake import MAX_JOBS, prepare
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.tiers import Tier, Tiers
from gpuyard.domain.validation import parse_spec

KNOWN = {"job_old": "job_old", "old": "job_old"}


def take(*bodies, tiers=None):
    return prepare(bodies, tiers or Tiers(), KNOWN.get)


def refused(*bodies, tiers=None) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        take(*bodies, tiers=tiers)
    return caught.value


def job(name="job", **fields):
    return {"name": name, "command": ["true"], **fields}


def test_jobs_get_ids_in_the_order_they_came():
    prepared = take(*(job(str(n)) for n in range(50)))
    ids = [item.id for item in prepared]
    assert ids == sorted(set(ids))
    assert [item.spec.name for item in prepared] == [str(n) for n in range(50)]


def test_parents_are_siblings_first_then_known_jobs():
    first, second, third = take(job("a"), job("b", depends_on=["a", "old"]), job("c", depends_on=["job_old"]))
    assert first.parents == ()
    assert second.parents == (first.id, "job_old")
    assert third.parents == ("job_old",)


def test_a_child_may_come_before_its_parent():
    child, parent = take(job("b", depends_on=["a"]), job("a"))
    assert child.parents == (parent.id,)


def test_a_circle_is_named():
    error = refused(job("a", depends_on=["c"]), job("b", depends_on=["a"]), job("c", depends_on=["b"]))
    (fault,) = error.faults
    assert fault.field == "depends_on"
    assert fault.fault.startswith("goes in a circle: ")
    assert {"a", "b", "c"} <= set(fault.fault.split())


def test_a_job_cannot_wait_for_itself():
    assert "goes in a circle: a → a" in str(refused(job("a", depends_on=["a"])))


def test_an_unknown_parent_is_named():
    assert "depends_on: there is no job 'nobody'" in str(refused(job(depends_on=["nobody"])))


def test_a_name_that_two_siblings_share_is_no_parent():
    error = refused(job("a"), job("a"), job("b", depends_on=["a"]))
    assert "depends_on: 'a' is the name of 2 jobs of this submission (give each a name of its own)" in str(error)


def test_faults_are_numbered_when_several_jobs_come():
    error = refused(job(), job(priority=9), job(nmae="x"))
    assert [fault.field for fault in error.faults] == ["1.priority", "2.nmae"]
    assert refused(job(priority=9)).faults[0].field == "priority"


def test_one_key_for_two_jobs_is_refused():
    error = refused(job("a", idempotency_key="k"), job("b"), job("c", idempotency_key="k"))
    assert "2.idempotency_key: 'k' is also that of job 0" in str(error)


@pytest.mark.parametrize("count", [0, MAX_JOBS + 1])
def test_too_few_or_too_many_jobs(count):
    error = refused(*[job()] * count)
    assert f"(body): holds {count} jobs (send 1 to {MAX_JOBS} at once)" in str(error)


@pytest.mark.parametrize(
    ("body", "field"),
    [({"script": "embed_768"}, "script"), ({"prompt": "hello"}, "prompt"), (job(image="pytorch:latest"), "image")],
)
def test_what_comes_later_is_refused_and_not_misread(body, field):
    (fault,) = refused(body).faults
    assert fault.field == field
    assert "this version does not have yet" in fault.fault


def test_an_s2_config_is_taken_with_warnings():
    (item,) = take({"name": "a", "image": "pytorch:latest", "command": ["x"], "gpu_spec": {"gpu_type": "A100"},
                    "environment": {"CUDA_VISIBLE_DEVICES": "0"}})  # fmt: skip
    assert item.spec.resources.gpus.count == 1
    assert [warning.split()[0] for warning in item.warnings] == ["environment.CUDA_VISIBLE_DEVICES", "image"]


def test_pinned_devices_are_flagged():
    (item,) = take(job(resources={"gpus": {"count": 1, "uuid": ["GPU-1"]}}))
    assert "pins devices" in item.warnings[0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tier": "gpu_small"}, (4, 16, 1, 16, 7200)),
        ({"tier": "CPU_LARGE"}, (2, 4, 0, None, 600)),
        ({"tier": "GPU_SMALL", "timeout_s": 60}, (4, 16, 1, 16, 60)),
        ({"tier": "GPU_SMALL", "resources": {"cpus": 1, "memory_gb": 2}}, (1, 2, 1, 16, 7200)),
        ({"tier": "GPU_LARGE", "resources": {"gpus": {"count": 2}}}, (8, 32, 2, 24, 86400)),
        ({"tier": "GPU_LARGE", "resources": {"gpus": {"memory_gb": 10}}}, (8, 32, 1, 10, 86400)),
        ({"tier": "GPU_LARGE", "resources": {"gpus": {"gpu_class": "t4"}}}, (8, 32, 1, None, 86400)),
    ],
)
def test_a_tier_fills_in_what_is_left_open(fields, expected):
    (item,) = take(job(**fields))
    need = item.spec.resources
    assert (need.cpus, need.memory_gb, need.gpus.count, need.gpus.memory_gb, item.spec.timeout_s) == expected
    assert item.spec.tier == fields["tier"].upper()
    assert parse_spec(item.spec.model_dump(mode="json", exclude_defaults=True)) == item.spec


def test_a_tier_whose_gpus_have_no_size_asks_for_none():
    bare = Tier(id="BARE", name="", description="", cpu=1, memory_gb=1, gpu_count=1, max_runtime_s=60, cost_per_hour=1)
    (item,) = take(job(tier="BARE"), tiers=Tiers([bare]))
    assert (item.spec.resources.gpus.count, item.spec.resources.gpus.memory_gb) == (1, None)
    assert parse_spec(item.spec.model_dump(mode="json", exclude_defaults=True)) == item.spec


def test_an_unknown_tier_is_named_with_the_nearest():
    assert "tier: there is no tier 'GPU_HUGE' (nearest: GPU_" in str(refused(job(tier="GPU_HUGE")))
