"""The main job, from nothing: a small GPT learns real text through gpuyard, is stopped,
resumed, and paid for.

Everything happens in `demo/` beside this checkout's files; nothing needs to run before,
and nothing runs after.
"""

import os
import shutil
import sys
import time
from pathlib import Path

DEMO = Path(__file__).resolve().parent.parent / "demo"
os.environ["GPUYARD_HOME"] = str(DEMO / "home")

import gpuyard  # noqa: E402  (the home must be known first)
from gpuyard import templates  # noqa: E402
from gpuyard.cli.follow import summary  # noqa: E402
from gpuyard.cli.job_files import load_spec  # noqa: E402
from gpuyard.cli.output import money  # noqa: E402
from gpuyard.client import calls  # noqa: E402
from gpuyard.domain.jobs import Job  # noqa: E402
from gpuyard.domain.units import format_duration  # noqa: E402

BARS = "▁▂▃▄▅▆▇█"
SHOW_EVERY = 25


def main() -> None:
    """Run the demo; the exit code says whether everything held."""
    shutil.rmtree(DEMO, ignore_errors=True)
    folder = DEMO / "nanogpt"
    templates.write("nanogpt", folder)
    say("1", f"a small GPT to train, written to {folder}")
    with gpuyard.Client() as instance:
        say("2", f"the embedded server, started at {instance.address.url}")
        try:
            train(instance, folder)
        finally:
            instance.call(calls.stop("cancel"))


def train(instance: gpuyard.Client, folder: Path) -> None:
    """Train, stop half-way, resume, and show what it came to."""
    spec = {**load_spec(folder / "job.toml"), "workdir": str(folder)}
    job = instance.run(spec)
    say(
        "3",
        f"submitted as {job.id}; the first run prepares PyTorch, which takes a minute",
    )
    stop_at = watch(job, until_checkpoint=True)
    job.cancel()
    job.wait(timeout=60)
    say("4", f"stopped on purpose after step {stop_at}: {summary(job.info)}")
    before = len(job.metrics("loss")["loss"])
    job.resume()
    say("5", f"resumed from {job.checkpoints()[-1].path}")
    watch(job, until_checkpoint=False)
    done = job.wait(timeout=60)
    show_seam(job, before)
    show_summary(job)
    if done.state != "completed":
        sys.exit(f"the demo did not hold: {summary(done)}")


def watch(job: gpuyard.JobHandle, *, until_checkpoint: bool) -> int:
    """Show progress as it comes: to the end, or until half of the steps are done and a
    checkpoint is saved.
    """
    shown = -1
    for line in job.logs(lines=0):
        if not line.startswith(("GPUYARD_METRIC", "iter ", "step ", "saving ")):
            print(f"    | {line}", flush=True)
        info = (
            job.refresh()
            if line.startswith(("iter ", "step ", "saving "))
            else job.info
        )
        step = info.progress.step or 0
        total = info.progress.total or 0
        if (
            step // SHOW_EVERY != shown // SHOW_EVERY
            and "loss" in info.progress.metrics
        ):
            shown = step
            show_progress(info)
        if until_checkpoint and info.checkpoints and total and step > total // 2:
            return step
    return job.refresh().progress.step or 0


def show_progress(info: Job) -> None:
    """One line: how far, the loss, what is left, what it cost so far."""
    progress = info.progress
    part = (progress.step or 0) / (progress.total or 1)
    bar = ("━" * round(part * 24)).ljust(24, "·")
    left = f"ETA {format_duration(progress.eta_s)}"
    print(
        f"    {bar} step {progress.step:>4}/{progress.total}  loss"
        f" {progress.metrics['loss']:.3f}  {left:<9} {info.checkpoints} checkpoints "
        f" {money(info.cost)}",
        flush=True,
    )


def show_seam(job: gpuyard.JobHandle, before: int) -> None:
    """The losses around the stop: the resumed run goes on where the first one was."""
    series = job.metrics("loss", points=100_000)["loss"]
    say("6", "the loss, over both attempts")
    values = [point["value"] for point in series]
    low = min(values)
    high = max(values)
    picked = values[:: max(len(values) // 60, 1)]
    print(
        "    "
        + "".join(BARS[round((v - low) / ((high - low) or 1) * 7)] for v in picked)
    )
    for label, points in (
        ("before the stop", series[:before][-3:]),
        ("after the resume", series[before:][:3]),
    ):
        words = ", ".join(f"step {p['step']}: {p['value']:.4f}" for p in points)
        print(f"    {label:<17} {words}")


def show_summary(job: gpuyard.JobHandle) -> None:
    """What it came to."""
    info = job.refresh()
    series = job.metrics("loss")["loss"]
    newest = job.checkpoints()[-1]
    ran = sum(
        (a.ended_at or time.time()) - a.started_at
        for a in info.attempts
        if a.started_at
    )
    say("7", f"{info.name} {info.state}")
    rows = {
        "steps": (
            f"{info.progress.step} of {info.progress.total}, in"
            f" {len(info.attempts)} attempts"
        ),
        "loss": (
            f"{series[0]['value']:.4f} at the start, {series[-1]['value']:.4f} at"
            " the end"
        ),
        "time": format_duration(ran),
        "cost": (
            f"{money(info.cost)} (at {info.cost.tier}'s {info.cost.basis} price,"
            f" ${info.cost.price_per_hour}/h)"
        ),
        "checkpoint": (
            f"{Path(str(info.spec and info.spec['workdir'])) / newest.path} (step"
            f" {newest.step})"
        ),
    }
    for name, value in rows.items():
        print(f"    {name:<11} {value}")


def say(number: str, text: str) -> None:
    """A numbered heading."""
    print(f"[{number}] {text}", flush=True)


if __name__ == "__main__":
    main()
