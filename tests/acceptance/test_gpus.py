"""GPUs end to end, with a fake NVML under the unmodified binding: who gets which device, and what the job sees."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import amd
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


def test_a_gpu_with_a_fatal_xid_is_quarantined_with_its_reason_until_it_is_released(
    gpu_yard: TestYard,
    fake_gpus: FakeGpus,  # noqa: F811
) -> None:
    """Its job runs again elsewhere, once; the reason is in `gpus` and in `why`."""
    body = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; [ $GPUYARD_ATTEMPT = 1 ] && sleep 60; exit 0"]
    job = gpu_yard.submit(body, resources={"gpus": {"count": 1, "memory_gb": 40}}, retry_count=1)
    gpu_yard.wait(job, "running")
    (first,) = gpu_yard.json("show", job)["gpus"]

    def quarantined() -> bool:
        fake_gpus.xid(first, 79)  # one that comes before somebody listens is not heard
        return gpus(gpu_yard)[first]["state"] == "quarantined"

    wait_until(quarantined, 20, "the quarantine")
    assert "Xid 79 (the GPU has fallen off the bus)" in gpus(gpu_yard)[first]["problem"]
    done = gpu_yard.wait(job)
    assert (done.state, len(done.attempts)) == ("completed", 2)
    assert (done.attempts[0].reason, done.attempts[1].gpus != [first]) == ("gpu_failed", True)
    assert "Xid 79" in (done.attempts[0].message or "")
    waiting = gpu_yard.submit(SHOW, resources={"gpus": {"count": 1, "uuid": [first]}})
    assert "Xid 79" in gpu_yard.ok("why", waiting)
    gpu_yard.ok("gpus", "--release", first)
    assert gpu_yard.wait(waiting).state == "completed"


def test_a_programs_own_xid_is_told_to_its_owner(gpu_yard: TestYard, fake_gpus: FakeGpus) -> None:  # noqa: F811
    fault = gpu_yard.work / "fault"
    body = ["sh", "-c", f"while [ ! -e {fault} ]; do sleep 0.05; done; exit 3"]
    job = gpu_yard.submit(body, resources={"gpus": {"count": 1, "uuid": [T]}})
    gpu_yard.wait(job, "running")
    wait_until(lambda: "listening" in listeners(), 20, "somebody to listen")
    fake_gpus.xid(T, 31)
    fake_gpus.xid(A, 79)
    wait_until(lambda: gpus(gpu_yard)[A]["state"] == "quarantined", 20, "the Xid that came last to be heard")
    fault.touch()
    done = gpu_yard.wait(job)
    assert (done.state, done.attempts[0].reason) == ("failed", "exit_code")
    assert "Xid 31 (GPU memory page fault)" in (done.attempts[0].message or "")
    assert gpus(gpu_yard)[T]["state"] == "idle"


def test_a_hot_gpu_finishes_what_it_has_and_cools_down(gpu_yard: TestYard, fake_gpus: FakeGpus) -> None:  # noqa: F811
    job = gpu_yard.submit(["sleep", "60"], resources={"gpus": {"count": 1, "uuid": [T]}})
    gpu_yard.wait(job, "running")
    fake_gpus.set(T, temperature=96)
    wait_until(lambda: gpus(gpu_yard)[T]["state"] == "cooling", 20, "the heat to be seen")
    assert gpu_yard.ok("run", "-g", "1", "--", *SHOW).strip() in (A, B)
    assert gpu_yard.json("show", job)["state"] == "running"
    assert "too hot" in gpu_yard.ok("gpus")
    fake_gpus.set(T, temperature=50)
    wait_until(lambda: gpus(gpu_yard)[T]["state"] == "script_busy", 20, "it to have cooled down")
    gpu_yard.ok("cancel", job)


def test_a_job_whose_gpu_is_lost_fails_visibly_or_runs_again_as_its_spec_says(
    gpu_yard: TestYard,
    fake_gpus: FakeGpus,  # noqa: F811
) -> None:
    lost = gpu_yard.submit(["sleep", "60"], resources={"gpus": {"count": 1, "uuid": [T]}})
    gone = gpu_yard.submit(["sleep", "60"], resources={"gpus": {"count": 1, "uuid": [A]}})
    for job in (lost, gone):
        gpu_yard.wait(job, "running")
    for job, said, fail in ((lost, "lost", fake_gpus.lose), (gone, "no longer there", fake_gpus.remove)):
        fail(T if job == lost else A)
        done = gpu_yard.wait(job)
        assert (done.state, done.reason) == ("failed", "gpu_failed")
        assert said in (done.attempts[0].message or "").lower()


def test_a_drained_gpu_keeps_what_it_has_and_gets_nothing_new(gpu_yard: TestYard) -> None:
    job = gpu_yard.submit(["sleep", "60"], resources={"gpus": {"count": 1, "uuid": [T]}})
    gpu_yard.wait(job, "running")
    gpu_yard.ok("gpus", "--drain", T)
    assert (gpus(gpu_yard)[T]["state"], gpus(gpu_yard)[T]["draining"]) == ("script_busy", True)
    gpu_yard.ok("cancel", job)
    gpu_yard.wait(job)
    assert gpus(gpu_yard)[T]["state"] == "draining"
    waiting = gpu_yard.submit(SHOW, resources={"gpus": {"count": 1, "uuid": [T]}})
    assert "draining" in gpu_yard.ok("why", waiting)
    gpu_yard.ok("gpus", "--undrain", "2")
    assert gpu_yard.wait(waiting).state == "completed"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(["--drain", "9"], 3, "no GPU '9'"), (["--release", "0"], 4, "is idle"), (["--drain", "GPU-"], 2, "could be")],
)
def test_a_gpu_that_is_not_there_or_not_meant_is_named(
    gpu_yard: TestYard, words: list[str], code: int, said: str
) -> None:
    refused = gpu_yard.run("gpus", *words)
    assert (refused.returncode, said in refused.stderr) == (code, True)


def gpus(yard: TestYard) -> dict[str, dict[str, object]]:
    return {gpu["uuid"]: gpu for gpu in yard.json("gpus")["items"]}


def listeners() -> str:
    """Whether a process that listens for Xid errors has all its threads."""
    import psutil

    found = [p for p in psutil.process_iter(["cmdline"]) if "gpuyard.devices.xids" in (p.info["cmdline"] or [])]
    return "listening" if found and found[0].num_threads() >= 4 else ""


def test_gpus_can_be_simulated_for_trying_things_out() -> None:
    with make_yard() as yard:
        refused = yard.run("up", "--simulate-gpus", "five")
        assert (refused.returncode, "write 5x24" in refused.stderr) == (2, True)
        yard.ok("up", "--simulate-gpus", "2x24")
        wait_for_gpus(yard, **{"GPU-simulated-0": "idle", "GPU-simulated-1": "idle"})
        assert yard.ok("run", "--gpu-memory", "20GB", "--", *SHOW).strip() == "GPU-simulated-0"
        assert "24 GB" in yard.ok("gpus")
        again = yard.run("up", "--simulate-gpus", "3x24")
        assert (again.returncode, "gpuyard down" in again.stderr) == (4, True)


# --- other kinds of GPUs ---


def test_instances_of_a_divided_gpu_are_gpus_of_their_own(fake_gpus: FakeGpus) -> None:  # noqa: F811
    """Each runs its own job; an error of one is not the other's, one of the whole card is both's."""
    fake_gpus.add(A)
    fake_gpus.add_mig(A, "MIG-a")
    fake_gpus.add_mig(A, "MIG-b")
    with make_yard(**fake_gpus.env(), GPUYARD_NODE__DISCOVERY_S="0.2") as yard:
        yard.ok("up")
        wait_until(lambda: set(gpus(yard)) == {"MIG-a", "MIG-b"}, 20, "the instances")
        jobs = [yard.submit(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], resources={"gpus": 1}) for _ in range(2)]
        assert {yard.wait(job).state for job in jobs} == {"completed"}

        def quarantined(instance: int | None, *uuids: str) -> bool:
            fake_gpus.xid(A, 79, instance)  # one that comes before somebody listens is not heard
            return {uuid for uuid, gpu in gpus(yard).items() if gpu["state"] == "quarantined"} == set(uuids)

        wait_until(lambda: quarantined(2, "MIG-b"), 20, "the instance to be quarantined")
        wait_until(lambda: quarantined(None, "MIG-a", "MIG-b"), 20, "both to be quarantined")
        fake_gpus.lose(A)
        yard.ok("gpus", "--release", "MIG-a")
        wait_until(lambda: gpus(yard)["MIG-a"]["state"] == "offline", 20, "the loss to be seen")


def test_amds_gpus_run_jobs_which_know_them_by_their_names(tmp_path: Path) -> None:
    state = tmp_path / "amd.json"
    state.write_text(json.dumps({"gpus": [amd.BUSY, amd.PLAIN]}))
    with make_yard(**amd.environment(state), GPUYARD_NODE__DISCOVERY_S="0.2") as yard:
        yard.ok("up")
        wait_until(lambda: len(yard.json("gpus")["items"]) == 2, 20, "the GPUs")
        job = yard.submit(["sh", "-c", "echo $ROCR_VISIBLE_DEVICES"], resources={"gpus": {"count": 1, "memory_gb": 60}})
        assert yard.wait(job).state == "completed"
        assert yard.ok("logs", job).strip() == amd.BUSY["uuid"]
        state.write_text(json.dumps({"gpus": [{**amd.BUSY, "ecc": 2}, amd.PLAIN]}))
        states = lambda: [gpu["state"] for gpu in yard.json("gpus")["items"]]  # noqa: E731
        wait_until(lambda: states() == ["quarantined", "idle"], 30, "the memory errors to be seen")
