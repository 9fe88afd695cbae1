"""GPUs end to end, with a fake NVML under the unmodified binding: who gets which device, and what the job sees."""

from collections.abc import Iterator

import pytest

from tests.support.nvml import FakeGpus
from tests.support.nvml.fixtures import fake_gpus, nvml_library  # noqa: F401  (fixtures)
from tests.support.wait import wait_until
from tests.support.yard import TestYard, make_yard

A, B, T = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abc")
SHOW = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]


@pytest.fixture
def gpu_yard(fake_gpus: FakeGpus) -> Iterator[TestYard]:  # noqa: F811
    """A machine with two A100 of 40 GB and one T4, looked at five times a second."""
    fake_gpus.add(A, name="NVIDIA A100-SXM4-40GB", memory_mb=40960, cc="8.0")
    fake_gpus.add(B, name="NVIDIA A100-SXM4-40GB", memory_mb=40960, cc="8.0")
    fake_gpus.add(T, name="Tesla T4", memory_mb=15360, cc="7.5")
    with make_yard(**fake_gpus.env(), GPUYARD_NODE__DISCOVERY_S="0.2", GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as yard:
        yard.ok("up")
        wait_for_gpus(yard, **{A: "idle", B: "idle", T: "idle"})
        yield yard


def wait_for_gpus(yard: TestYard, **states: str) -> None:
    def seen() -> bool:
        return {gpu["uuid"]: gpu["state"] for gpu in yard.json("gpus")["items"]} == states

    wait_until(seen, 20, f"the GPUs to be {states}")


def test_a_job_gets_the_smallest_gpu_that_fits_by_uuid(gpu_yard: TestYard) -> None:
    assert gpu_yard.ok("run", "-g", "1", "--gpu-memory", "16GB", "--", *SHOW).strip() == T
    assert gpu_yard.ok("run", "--gpu-class", "A100", "--", *SHOW).strip() in (A, B)
    assert set(gpu_yard.ok("run", "-g", "2", "--gpu-memory", "40GB", "--", *SHOW).strip().split(",")) == {A, B}
    assert gpu_yard.ok("run", "--", *SHOW).strip() == ""


def test_the_catalogue_knows_them_and_the_listing_shows_who_has_them(gpu_yard: TestYard) -> None:
    job_id = gpu_yard.submit(["sleep", "60"], resources={"gpus": {"count": 1, "gpu_class": "t4"}})
    gpu_yard.wait(job_id, "running")
    gpus = {gpu["uuid"]: gpu for gpu in gpu_yard.json("gpus")["items"]}
    assert {gpu["gpu_class"] for gpu in gpus.values()} == {"a100-40gb", "t4"}
    assert (gpus[T]["state"], gpus[T]["job_id"]) == ("script_busy", job_id)
    assert gpus[A]["state"] == "idle"
    gpu_yard.ok("cancel", job_id)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["-g", "4"], "4 needed"), (["-g", "1", "--gpu-memory", "80GB"], "80"), (["--gpu-class", "H100"], "h100")],
)
def test_what_never_fits_is_refused_at_once_with_the_largest_there_is(
    gpu_yard: TestYard, words: list[str], said: str
) -> None:
    refused = gpu_yard.run("run", "-d", *words, "--", "true")
    assert refused.returncode == 4
    assert said in refused.stderr
    assert "largest" in refused.stderr
    assert gpu_yard.json("jobs")["items"] == []


def test_no_gpu_is_given_out_twice(gpu_yard: TestYard) -> None:
    """Each job holds its device as a lock file; finding it taken is a failure."""
    body = (
        'for d in $(echo $CUDA_VISIBLE_DEVICES | tr , " "); do mkdir $d || exit 9; done; sleep 0.2; '
        'for d in $(echo $CUDA_VISIBLE_DEVICES | tr , " "); do rmdir $d; done'
    )
    with gpu_yard.client() as client:
        counts = [1, 2, 1, 3, 1, 2, 1, 1, 2, 1]
        jobs = client.submit_many([
            {"command": ["sh", "-c", body], "workdir": str(gpu_yard.work),
             "resources": {"cpus": 0.1, "gpus": {"count": count}}} for count in counts
        ])  # fmt: skip
        assert [job.wait(60).state for job in jobs] == ["completed"] * len(counts)


def test_a_lost_gpu_gets_nothing_new_and_comes_back(gpu_yard: TestYard, fake_gpus: FakeGpus) -> None:  # noqa: F811
    fake_gpus.lose(T)
    wait_for_gpus(gpu_yard, **{A: "idle", B: "idle", T: "offline"})
    assert gpu_yard.ok("run", "-g", "1", "--", *SHOW).strip() in (A, B)
    waiting = gpu_yard.submit(SHOW, resources={"gpus": {"count": 1, "gpu_class": "t4"}})
    assert "T4" in gpu_yard.ok("why", waiting) or "t4" in gpu_yard.ok("why", waiting)
    fake_gpus.set(T, lost=None)
    assert gpu_yard.wait(waiting).state == "completed"


def test_gpus_come_and_go_while_the_yard_runs(gpu_yard: TestYard, fake_gpus: FakeGpus) -> None:  # noqa: F811
    fake_gpus.remove(A)
    wait_for_gpus(gpu_yard, **{B: "idle", T: "idle"})
    new = "GPU-dddddddd-0000-0000-0000-000000000000"
    fake_gpus.add(new, name="NVIDIA H100 80GB HBM3", memory_mb=81559, cc="9.0")
    wait_for_gpus(gpu_yard, **{B: "idle", T: "idle", new: "idle"})
    assert gpu_yard.ok("run", "--gpu-memory", "80GB", "--", *SHOW).strip() == new


def test_a_pinned_gpu_is_honoured_and_flagged(gpu_yard: TestYard) -> None:
    job_id = gpu_yard.submit(SHOW, resources={"gpus": {"count": 1, "uuid": [B]}})
    done = gpu_yard.wait(job_id)
    assert gpu_yard.ok("logs", job_id).strip() == B
    assert "pins devices" in done.warnings[0]


def test_a_tier_fills_in_what_the_spec_leaves_open(gpu_yard: TestYard) -> None:
    job_id = gpu_yard.submit(["true"], resources={"cpus": 1, "memory_gb": 1}, tier="gpu_small")
    done = gpu_yard.wait(job_id)
    assert done.attempts[0].gpus == [T]
    assert (done.cost.tier, str(done.cost.price_per_hour)) == ("GPU_SMALL", "0.526")
