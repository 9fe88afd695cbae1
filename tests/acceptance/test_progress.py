"""Training programs that know nothing of gpuyard: progress and series while they run
and after, however they print.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import CORPUS, corpus
from tests.support.instance import TestInstance, gpuyard, make_instance
from tests.support.wait import wait_until
from tests.support.web import http
from tests.unit.insight.test_logs import EXPECTED, LOGS

PROGRAMS = Path(__file__).parents[1] / "programs"
LINE = 5_000_000  # bytes
# A megabyte is about 44,000 lines. `make soak` has the program write 50 of them.
MEGABYTES = int(os.environ.get("GPUYARD_OUTPUT_MB", "10"))
NOISE = f"""
import sys
for n in range(1000):
    print(f"iter {{n}}: loss {{1000 - n}}.0, time 1.00ms")
    sys.stdout.write("".join(f"noise {{n}} of {{k}} = {{n * k}}\\n" for k in range({44 * MEGABYTES})))
    if n == 500:
        print("x" * {LINE})
print("the end")
"""


@pytest.fixture(scope="module")
def quick_instance() -> Iterator[TestInstance]:
    """An instance that tells progress ten times a second."""
    with make_instance(GPUYARD_NODE__PROGRESS_S="0.1") as instance:
        instance.ok("up")
        yield instance


def series(
    instance: TestInstance, reference: str
) -> dict[str, list[tuple[int | None, float]]]:
    """What `GET /jobs/ID/metrics` tells of what the program printed, as (step, value)
    by name.
    """
    with http(instance) as web:
        items = web.get(
            f"/api/v1/jobs/{reference}/metrics", params={"points": 10_000}
        ).json()["items"]
    own = [item for item in items if not item["name"].startswith("system/")]
    return {
        item["name"]: [(point["step"], point["value"]) for point in item["points"]]
        for item in own
    }


def test_an_unmodified_program_of_several_files_shows_how_far_it_is(
    quick_instance: TestInstance,
) -> None:
    folder = quick_instance.work / "minigpt"
    shutil.copytree(PROGRAMS / "minigpt", folder)
    words = [
        "run",
        "--name",
        "minigpt",
        "--checkpoint",
        "out-mini/*.json",
        "train.py",
        "--max_iters=80",
    ]
    running = subprocess.Popen(
        [*gpuyard(), *words],
        cwd=folder,
        env=quick_instance.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def seen() -> Any:
        done = quick_instance.run("show", "minigpt", "--json")
        job = quick_instance.job("minigpt") if done.returncode == 0 else None
        return job if job and (job.progress.step or 0) > 4 else None

    job = wait_until(seen, what="progress to be shown")
    assert job.state == "running"
    assert 4 < job.progress.step < 80 == job.progress.total
    assert 0 < job.progress.eta_s < 600
    assert {"loss", "train_loss", "val_loss"} <= set(job.progress.metrics)
    assert series(quick_instance, job.id)["train_loss"][0][0] == 0

    output, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors
    assert output.splitlines()[0] == "Overriding: max_iters = 80"
    assert "step 80/80" in errors
    after = quick_instance.json("show", "minigpt")
    assert (after["progress"]["step"], after["progress"]["total"]) == (80, 80)
    told = series(quick_instance, "minigpt")
    printed = [line.split() for line in output.splitlines()]
    assert told["loss"] == [
        (int(w[1][:-1]), float(w[3][:-1])) for w in printed if w[0] == "iter"
    ]
    assert told["val_loss"] == [
        (int(w[1][:-1]), float(w[7])) for w in printed if w[0] == "step"
    ]
    assert told["val_loss"][-1][1] < told["val_loss"][0][1]
    assert after["progress"]["metrics"] == {
        name: points[-1][1] for name, points in told.items()
    }
    (saved,) = quick_instance.json("checkpoints", "minigpt")["items"][-1:]
    assert (saved["path"], saved["step"]) == ("out-mini/ckpt.json", 80)


def test_the_logs_of_every_trainer_are_read_as_they_are_written(
    quick_instance: TestInstance,
) -> None:
    bodies = [
        {
            "name": name,
            "command": [
                "python3",
                str(PROGRAMS / "replay" / "replay.py"),
                str(LOGS / f"{name}.log"),
            ],
            "resources": {"cpus": 0.5},
        }
        for name in EXPECTED
    ]
    with quick_instance.client() as client:
        for job in client.submit_many(bodies):
            job.wait(60)
            name = job.info.name
            points, end = EXPECTED[name]
            assert job.info.state == "completed", name
            wait_until(
                lambda job=job, points=points: series(quick_instance, job.id) == points,
                what=f"the series of {name}",
            )
            progress = job.refresh().progress
            assert (progress.step, progress.total, progress.epochs) == (
                end.step,
                end.total,
                end.epochs,
            ), name
            assert progress.metrics == {
                metric: values[-1][1] for metric, values in points.items()
            }, name
            assert b"".join(job.output()) == (LOGS / f"{name}.log").read_bytes(), name


def test_megatrons_loss_and_ultralytics_tables_become_curves(
    quick_instance: TestInstance,
) -> None:
    logs = {log.name: log for log in corpus()}
    for name in ("megatron", "ultralytics"):
        quick_instance.ok("run", "--name", name, "--", "cat", f"{CORPUS}/{name}.log")
        points = {
            (metric, step, value)
            for metric, values in series(quick_instance, name).items()
            for step, value in values
        }
        assert set(logs[name].points) <= points
        others = {metric for metric, _, _ in points - set(logs[name].points)}
        assert others <= logs[name].tolerated


def test_many_megabytes_and_a_line_of_five_come_through_whole(
    quick_instance: TestInstance,
) -> None:
    (quick_instance.work / "noise.py").write_text(NOISE)
    noise = subprocess.run(
        ["python3", "noise.py"],
        cwd=quick_instance.work,
        capture_output=True,
        check=False,
    )
    assert noise.returncode == 0, noise.stderr
    expected = noise.stdout
    assert len(expected) > MEGABYTES * 1_000_000
    job_id = quick_instance.submit(["python3", "noise.py"], name="noisy")
    following = subprocess.run(
        [*gpuyard(), "logs", "-f", job_id],
        cwd=quick_instance.work,
        env=quick_instance.environment,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert following.returncode == 0
    assert "completed" in following.stderr.decode()
    assert (
        hashlib.sha256(following.stdout).digest() == hashlib.sha256(expected).digest()
    )
    assert quick_instance.ok("logs", job_id, "-n", "2").endswith("\nthe end\n")
    wait_until(
        lambda: (
            series(quick_instance, job_id).get("loss")
            == [(n, 1000.0 - n) for n in range(1000)]
        ),
        what="points",
    )
    assert quick_instance.json("show", job_id)["progress"]["step"] == 999
