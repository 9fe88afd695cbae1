"""GPUs end to end, with a fake NVML under the unmodified binding: who gets which
device, and what the job sees.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import amd
from tests.support.instance import TestInstance, make_instance
from tests.support.nvml import FakeGpus
from tests.support.wait import wait_until

A, B, T = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abc")
SHOW = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]


@pytest.fixture
def gpu_instance(fake_gpus: FakeGpus) -> Iterator[TestInstance]:
    """A machine with two A100 of 40 GB and one T4, looked at five times a second."""
    fake_gpus.add(A, name="NVIDIA A100-SXM4-40GB", memory_mb=40960, cc="8.0")
    fake_gpus.add(B, name="NVIDIA A100-SXM4-40GB", memory_mb=40960, cc="8.0")
    fake_gpus.add(T, name="Tesla T4", memory_mb=15360, cc="7.5")
    with make_instance(
        **fake_gpus.env(),
        GPUYARD_NODE__DISCOVERY_S="0.2",
        GPUYARD_SCHEDULER__RETRY_BASE_S="0.1",
    ) as instance:
        instance.ok("up")
        wait_for_gpus(instance, **{A: "idle", B: "idle", T: "idle"})
        yield instance


def wait_for_gpus(instance: TestInstance, **states: str) -> None:
    def seen() -> bool:
        return {
            gpu["uuid"]: gpu["state"] for gpu in instance.json("gpus")["items"]
        } == states

    wait_until(seen, what=f"the GPUs to be {states}")


def test_a_job_gets_the_smallest_gpu_that_fits_by_uuid(
    gpu_instance: TestInstance,
) -> None:
    assert (
        gpu_instance.ok("run", "-g", "1", "--gpu-memory", "16GB", "--", *SHOW).strip()
        == T
    )
    assert gpu_instance.ok("run", "--gpu-class", "A100", "--", *SHOW).strip() in (A, B)
    assert set(
        gpu_instance.ok("run", "-g", "2", "--gpu-memory", "40GB", "--", *SHOW)
        .strip()
        .split(",")
    ) == {A, B}
    assert gpu_instance.ok("run", "--", *SHOW).strip() == ""


TRAIN = """
import os

def train():
    import torch
    return torch.cuda.current_device()

print("Using cpu device")
print("devices:", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
"""


def test_a_gpu_script_without_gpus_is_told_and_offered_the_flag(
    gpu_instance: TestInstance,
) -> None:
    (gpu_instance.work / "train.py").write_text(TRAIN)
    told = gpu_instance.run("run", "--name", "cpu", "train.py").stderr
    assert "meant for a GPU (torch.cuda)" in told
    assert "--gpus 1" in told
    wait_until(
        lambda: "found no GPU" in gpu_instance.ok("show", "cpu"), what="the note"
    )
    kinds = [event["kind"] for event in gpu_instance.json("events")["items"]]
    assert kinds.count("job.on_cpu") == 1
    chosen = gpu_instance.run("run", "--name", "chosen", "--gpus", "0", "train.py")
    assert "GPU" not in chosen.stderr
    assert "found no GPU" not in gpu_instance.ok("show", "chosen")


def test_a_gpu_script_gets_a_gpu_by_default_where_the_settings_say_so(
    fake_gpus: FakeGpus,
) -> None:
    fake_gpus.add(T, name="Tesla T4", memory_mb=15360, cc="7.5")
    with make_instance(**fake_gpus.env(), GPUYARD_DEFAULTS__GPUS="auto") as instance:
        (instance.work / "train.py").write_text(TRAIN)
        given = instance.run("run", "--name", "auto", "train.py")
        assert "it gets 1 GPU" in given.stderr
        assert f"devices: {T}" in given.stdout
        none = instance.ok("run", "--name", "none", "--gpus", "0", "train.py")
        assert T not in none


def test_the_catalogue_knows_them_and_the_listing_shows_who_has_them(
    gpu_instance: TestInstance,
) -> None:
    job_id = gpu_instance.submit(
        ["sleep", "60"], resources={"gpus": {"count": 1, "gpu_class": "t4"}}
    )
    gpu_instance.wait(job_id, "running")
    gpus = {gpu["uuid"]: gpu for gpu in gpu_instance.json("gpus")["items"]}
    assert {gpu["gpu_class"] for gpu in gpus.values()} == {"a100-40gb", "t4"}
    assert (gpus[T]["state"], gpus[T]["job_id"]) == ("script_busy", job_id)
    assert gpus[A]["state"] == "idle"
    assert f"{gpus[T]['name']} ({T})" in gpu_instance.ok("show", job_id)
    gpu_instance.ok("cancel", job_id)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-g", "4"], "4 needed"),
        (["-g", "1", "--gpu-memory", "80GB"], "80"),
        (["--gpu-class", "H100"], "h100"),
    ],
)
def test_what_never_fits_is_refused_at_once_with_the_largest_there_is(
    gpu_instance: TestInstance, words: list[str], said: str
) -> None:
    refused = gpu_instance.run("run", "-d", *words, "--", "true")
    assert refused.returncode == 4
    assert said in refused.stderr
    assert "largest" in refused.stderr
    assert gpu_instance.json("jobs")["items"] == []


def test_no_gpu_is_given_out_twice(gpu_instance: TestInstance) -> None:
    """Each job holds its device as a lock file; finding it taken is a failure."""
    body = (
        'for d in $(echo $CUDA_VISIBLE_DEVICES | tr , " "); do mkdir $d || exit 9;'
        ' done; sleep 0.2; for d in $(echo $CUDA_VISIBLE_DEVICES | tr , " "); do rmdir'
        " $d; done"
    )
    with gpu_instance.client() as client:
        counts = [1, 2, 1, 3, 1, 2, 1, 1, 2, 1]
        jobs = client.submit_many(
            [
                {
                    "command": ["sh", "-c", body],
                    "workdir": str(gpu_instance.work),
                    "resources": {"cpus": 0.1, "gpus": {"count": count}},
                }
                for count in counts
            ]
        )
        assert [job.wait(60).state for job in jobs] == ["completed"] * len(counts)


def test_a_lost_gpu_gets_nothing_new_and_comes_back(
    gpu_instance: TestInstance, fake_gpus: FakeGpus
) -> None:
    fake_gpus.lose(T)
    wait_for_gpus(gpu_instance, **{A: "idle", B: "idle", T: "offline"})
    assert gpu_instance.ok("run", "-g", "1", "--", *SHOW).strip() in (A, B)
    waiting = gpu_instance.submit(
        SHOW, resources={"gpus": {"count": 1, "gpu_class": "t4"}}
    )
    assert "T4" in gpu_instance.ok("why", waiting) or "t4" in gpu_instance.ok(
        "why", waiting
    )
    fake_gpus.set(T, lost=None)
    assert gpu_instance.wait(waiting).state == "completed"


def test_gpus_come_and_go_while_the_instance_runs(
    gpu_instance: TestInstance, fake_gpus: FakeGpus
) -> None:
    fake_gpus.remove(A)
    wait_for_gpus(gpu_instance, **{B: "idle", T: "idle"})
    new = "GPU-dddddddd-0000-0000-0000-000000000000"
    fake_gpus.add(new, name="NVIDIA H100 80GB HBM3", memory_mb=81559, cc="9.0")
    wait_for_gpus(gpu_instance, **{B: "idle", T: "idle", new: "idle"})
    assert gpu_instance.ok("run", "--gpu-memory", "80GB", "--", *SHOW).strip() == new


def test_a_pinned_gpu_is_honoured_and_flagged(gpu_instance: TestInstance) -> None:
    job_id = gpu_instance.submit(SHOW, resources={"gpus": {"count": 1, "uuid": [B]}})
    done = gpu_instance.wait(job_id)
    assert gpu_instance.ok("logs", job_id).strip() == B
    assert "pins devices" in done.warnings[0]


def test_a_tier_fills_in_what_the_spec_leaves_open(gpu_instance: TestInstance) -> None:
    job_id = gpu_instance.submit(
        ["true"], resources={"cpus": 1, "memory_gb": 1}, tier="gpu_small"
    )
    done = gpu_instance.wait(job_id)
    assert done.attempts[0].gpus == [T]
    assert (done.cost.tier, str(done.cost.price_per_hour)) == ("GPU_SMALL", "0.526")


def test_a_gpu_with_a_fatal_xid_is_quarantined_with_its_reason_until_it_is_released(
    gpu_instance: TestInstance,
    fake_gpus: FakeGpus,
) -> None:
    """Its job runs again elsewhere, once; the reason is in `gpus` and in `why`."""
    body = [
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES; [ $GPUYARD_ATTEMPT = 1 ] && sleep 60; exit 0",
    ]
    job = gpu_instance.submit(
        body, resources={"gpus": {"count": 1, "memory_gb": 40}}, retry_count=1
    )
    gpu_instance.wait(job, "running")
    (first,) = gpu_instance.json("show", job)["gpus"]

    def quarantined() -> bool:
        fake_gpus.xid(first, 79)  # one that comes before somebody listens is not heard
        return gpus(gpu_instance)[first]["state"] == "quarantined"

    wait_until(quarantined, what="the quarantine")
    assert (
        "Xid 79 (the GPU has fallen off the bus)"
        in gpus(gpu_instance)[first]["problem"]
    )
    done = gpu_instance.wait(job)
    assert (done.state, len(done.attempts)) == ("completed", 2)
    assert (done.attempts[0].reason, done.attempts[1].gpus != [first]) == (
        "gpu_failed",
        True,
    )
    assert "Xid 79" in (done.attempts[0].message or "")
    waiting = gpu_instance.submit(
        SHOW, resources={"gpus": {"count": 1, "uuid": [first]}}
    )
    assert "Xid 79" in gpu_instance.ok("why", waiting)
    gpu_instance.ok("gpus", "--release", first)
    assert gpu_instance.wait(waiting).state == "completed"


def test_a_programs_own_xid_is_told_to_its_owner(
    gpu_instance: TestInstance, fake_gpus: FakeGpus
) -> None:
    fault = gpu_instance.work / "fault"
    body = ["sh", "-c", f"while [ ! -e {fault} ]; do sleep 0.05; done; exit 3"]
    job = gpu_instance.submit(body, resources={"gpus": {"count": 1, "uuid": [T]}})
    gpu_instance.wait(job, "running")
    for gpu in (T, A):
        wait_until(lambda uuid=gpu: fake_gpus.is_listened_to(uuid), what="listeners")
    fake_gpus.xid(T, 31)
    fake_gpus.xid(A, 79)
    wait_until(
        lambda: gpus(gpu_instance)[A]["state"] == "quarantined",
        what="the Xid that came last to be heard",
    )
    fault.touch()
    done = gpu_instance.wait(job)
    assert (done.state, done.attempts[0].reason) == ("failed", "exit_code")
    assert "Xid 31 (GPU memory page fault)" in (done.attempts[0].message or "")
    assert gpus(gpu_instance)[T]["state"] == "idle"


def test_a_hot_gpu_finishes_what_it_has_and_cools_down(
    gpu_instance: TestInstance, fake_gpus: FakeGpus
) -> None:
    job = gpu_instance.submit(
        ["sleep", "60"], resources={"gpus": {"count": 1, "uuid": [T]}}
    )
    gpu_instance.wait(job, "running")
    fake_gpus.set(T, temperature=96)
    wait_until(
        lambda: gpus(gpu_instance)[T]["state"] == "cooling", what="the heat to be seen"
    )
    assert gpu_instance.ok("run", "-g", "1", "--", *SHOW).strip() in (A, B)
    assert gpu_instance.json("show", job)["state"] == "running"
    assert "too hot" in gpu_instance.ok("gpus")
    fake_gpus.set(T, temperature=50)
    wait_until(
        lambda: gpus(gpu_instance)[T]["state"] == "script_busy",
        what="it to have cooled down",
    )
    gpu_instance.ok("cancel", job)


def test_a_job_whose_gpu_is_lost_fails_visibly_or_runs_again_as_its_spec_says(
    gpu_instance: TestInstance,
    fake_gpus: FakeGpus,
) -> None:
    lost = gpu_instance.submit(
        ["sleep", "60"], resources={"gpus": {"count": 1, "uuid": [T]}}
    )
    gone = gpu_instance.submit(
        ["sleep", "60"], resources={"gpus": {"count": 1, "uuid": [A]}}
    )
    for job in (lost, gone):
        gpu_instance.wait(job, "running")
    for job, said, fail in (
        (lost, "lost", fake_gpus.lose),
        (gone, "no longer there", fake_gpus.remove),
    ):
        fail(T if job == lost else A)
        done = gpu_instance.wait(job)
        assert (done.state, done.reason) == ("failed", "gpu_failed")
        assert said in (done.attempts[0].message or "").lower()


def test_a_drained_gpu_keeps_what_it_has_and_gets_nothing_new(
    gpu_instance: TestInstance,
) -> None:
    job = gpu_instance.submit(
        ["sleep", "60"], resources={"gpus": {"count": 1, "uuid": [T]}}
    )
    gpu_instance.wait(job, "running")
    gpu_instance.ok("gpus", "--drain", T)
    assert (gpus(gpu_instance)[T]["state"], gpus(gpu_instance)[T]["draining"]) == (
        "script_busy",
        True,
    )
    gpu_instance.ok("cancel", job)
    gpu_instance.wait(job)
    assert gpus(gpu_instance)[T]["state"] == "draining"
    waiting = gpu_instance.submit(SHOW, resources={"gpus": {"count": 1, "uuid": [T]}})
    assert "draining" in gpu_instance.ok("why", waiting)
    gpu_instance.ok("gpus", "--undrain", "2")
    assert gpu_instance.wait(waiting).state == "completed"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--drain", "9"], 3, "no GPU '9'"),
        (["--release", "0"], 4, "is idle"),
        (["--drain", "GPU-"], 2, "could be"),
    ],
)
def test_a_gpu_that_is_not_there_or_not_meant_is_named(
    gpu_instance: TestInstance, words: list[str], code: int, said: str
) -> None:
    refused = gpu_instance.run("gpus", *words)
    assert (refused.returncode, said in refused.stderr) == (code, True)


def gpus(instance: TestInstance) -> dict[str, dict[str, object]]:
    return {gpu["uuid"]: gpu for gpu in instance.json("gpus")["items"]}


def test_gpus_can_be_simulated_for_trying_things_out() -> None:
    with make_instance() as instance:
        refused = instance.run("up", "--simulate-gpus", "five")
        assert (refused.returncode, "write 5x24" in refused.stderr) == (2, True)
        instance.ok("up", "--simulate-gpus", "2x24")
        wait_for_gpus(
            instance, **{"GPU-simulated-0": "idle", "GPU-simulated-1": "idle"}
        )
        assert (
            instance.ok("run", "--gpu-memory", "20GB", "--", *SHOW).strip()
            == "GPU-simulated-0"
        )
        assert "24 GB" in instance.ok("gpus")
        again = instance.run("up", "--simulate-gpus", "3x24")
        assert (again.returncode, "gpuyard down" in again.stderr) == (4, True)


# --- other kinds of GPUs ---


def test_instances_of_a_divided_gpu_are_gpus_of_their_own(
    fake_gpus: FakeGpus,
) -> None:
    """Each runs its own job; an error of one is not the other's, one of the whole card
    is both's.
    """
    fake_gpus.add(A)
    fake_gpus.add_mig(A, "MIG-a")
    fake_gpus.add_mig(A, "MIG-b")
    with make_instance(**fake_gpus.env(), GPUYARD_NODE__DISCOVERY_S="0.2") as instance:
        instance.ok("up")
        wait_until(
            lambda: set(gpus(instance)) == {"MIG-a", "MIG-b"}, what="the instances"
        )
        jobs = [
            instance.submit(
                ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], resources={"gpus": 1}
            )
            for _ in range(2)
        ]
        assert {instance.wait(job).state for job in jobs} == {"completed"}

        def quarantined(mig: int | None, *uuids: str) -> bool:
            # One that comes before somebody listens is not heard.
            fake_gpus.xid(A, 79, mig)
            return {
                uuid
                for uuid, gpu in gpus(instance).items()
                if gpu["state"] == "quarantined"
            } == set(uuids)

        wait_until(
            lambda: quarantined(2, "MIG-b"), what="the instance to be quarantined"
        )
        wait_until(
            lambda: quarantined(None, "MIG-a", "MIG-b"), what="both to be quarantined"
        )
        fake_gpus.lose(A)
        instance.ok("gpus", "--release", "MIG-a")
        wait_until(
            lambda: gpus(instance)["MIG-a"]["state"] == "offline",
            what="the loss to be seen",
        )


def test_amds_gpus_run_jobs_which_know_them_by_their_names(tmp_path: Path) -> None:
    state = tmp_path / "amd.json"
    state.write_text(json.dumps({"gpus": [amd.BUSY, amd.PLAIN]}))
    with make_instance(
        **amd.environment(state), GPUYARD_NODE__DISCOVERY_S="0.2"
    ) as instance:
        instance.ok("up")
        wait_until(lambda: len(instance.json("gpus")["items"]) == 2, what="the GPUs")
        job = instance.submit(
            ["sh", "-c", "echo $ROCR_VISIBLE_DEVICES"],
            resources={"gpus": {"count": 1, "memory_gb": 60}},
        )
        assert instance.wait(job).state == "completed"
        assert instance.ok("logs", job).strip() == amd.BUSY["uuid"]
        # In one step: half a file has no GPU, and one that comes again begins anew.
        fresh = tmp_path / "fresh.json"
        fresh.write_text(json.dumps({"gpus": [{**amd.BUSY, "ecc": 2}, amd.PLAIN]}))
        fresh.replace(state)
        states = lambda: [gpu["state"] for gpu in instance.json("gpus")["items"]]  # noqa: E731
        wait_until(
            lambda: states() == ["quarantined", "idle"],
            what="the memory errors to be seen",
        )


def test_a_hot_gpu_is_warned_of_wherever_one_looks(
    gpu_instance: TestInstance, fake_gpus: FakeGpus
) -> None:
    job_id = gpu_instance.submit(["sleep", "60"], resources={"gpus": 3})
    gpu_instance.wait(job_id, "running")
    fake_gpus.set(T, temperature=80)

    def warnings() -> list[str]:
        return gpu_instance.json("show", job_id)["warnings"]

    (warning,) = wait_until(warnings, what="the warning")
    assert warning.startswith("its GPU 2 has become 75 °C hot")
    assert "80 °C hot" in gpu_instance.ok("gpus")
    assert "80 °C hot" in gpu_instance.ok("top", "--once")
    assert "80 °C hot" in gpu_instance.run("doctor").stdout
    (event,) = [
        event
        for event in gpu_instance.json("events")["items"]
        if event["kind"] == "gpu.warning"
    ]
    assert event["job_id"] == job_id
    gpu_instance.ok("cancel", job_id)
