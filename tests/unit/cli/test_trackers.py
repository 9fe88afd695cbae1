"""Names of runs for the trackers of a job, and runs that W&B kept here."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.cli.run_names import with_run_names
from gpuyard.cli.trackers import (
    offline_runs,
    refuse_job_of_others,
    send_offline_runs,
)
from gpuyard.domain.errors import InvalidInputError, RefusedError

JOB = {"name": "train", "command": ["true"], "workdir": "/home/ann/gpt"}


def added(body: dict[str, Any], **shell: str) -> dict[str, str]:
    return with_run_names(body, shell).get("environment", {})


@pytest.mark.parametrize(
    ("fields", "shell", "expected"),
    [
        ({}, {}, {}),
        (
            {"secrets": {"WANDB_API_KEY": "key"}},
            {},
            {"WANDB_NAME": "train", "WANDB_PROJECT": "gpt"},
        ),
        (
            {"project": "thesis"},
            {"WANDB_MODE": "offline", "WANDB_NAME": "mine"},
            {"WANDB_PROJECT": "thesis"},
        ),
        ({"clean_env": True}, {"WANDB_MODE": "offline"}, {}),
        (
            {"environment": {"MLFLOW_TRACKING_URI": "http://x"}},
            {},
            {
                "MLFLOW_TRACKING_URI": "http://x",
                "MLFLOW_EXPERIMENT_NAME": "gpt",
            },
        ),
        (
            {"array": "0-3"},
            {"WANDB_MODE": "offline", "WANDB_PROJECT": "mine"},
            {"WANDB_NAME": "train_{i}"},
        ),
    ],
)
def test_names_are_set_where_nobody_has_set_them(
    fields: dict[str, Any], shell: dict[str, str], expected: dict[str, str]
) -> None:
    assert added({**JOB, **fields}, **shell) == expected


@pytest.mark.parametrize(
    "body", [[], "text", {"prompt": "x"}, {**JOB, "environment": 3}, {**JOB, "name": 1}]
)
def test_what_is_no_plain_job_stays_as_it_is(body: Any) -> None:
    assert with_run_names(body, {"WANDB_MODE": "offline"}) == body


def test_runs_that_were_kept_while_the_job_ran(tmp_path: Path) -> None:
    for name, at in (("early", 50), ("kept", 150), ("sent", 150), ("late", 300)):
        folder = tmp_path / "out" / "wandb" / f"offline-run-{name}"
        folder.mkdir(parents=True)
        file = folder / "run-1.wandb"
        file.touch()
        os.utime(file, (at, at))
    (tmp_path / "out" / "wandb" / "offline-run-sent" / "run-1.wandb.synced").touch()

    def kept(start: float | None, end: float | None) -> list[str]:
        spec = {"workdir": str(tmp_path)}
        job = SimpleNamespace(spec=spec, started_at=start, ended_at=end)
        return [folder.name for folder in offline_runs(cast("Any", job))]

    assert kept(100, 200) == ["offline-run-kept"]
    assert kept(100, None) == ["offline-run-kept", "offline-run-late"]
    assert kept(None, None) == []


def test_runs_of_others_are_sent_only_for_who_is_named() -> None:
    of_ann = cast("Any", SimpleNamespace(name="train", user="ann"))
    refuse_job_of_others(of_ann, "ann")
    of_owner = cast("Any", SimpleNamespace(name="train", user=None))
    refuse_job_of_others(of_owner, None)
    refuse_job_of_others(of_owner, "owner")
    with pytest.raises(RefusedError, match="--user owner"):
        refuse_job_of_others(of_owner, "ann")
    for me in ("bob", None):
        with pytest.raises(RefusedError, match="--user ann"):
            refuse_job_of_others(of_ann, me)


def test_kept_runs_are_sent_with_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program called `wandb` writes down its words and leaves as it is told."""
    wandb = tmp_path / "bin" / "wandb"
    wandb.parent.mkdir()
    wandb.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\nexit $WANDB_CODE\n'
    )
    wandb.chmod(0o755)
    monkeypatch.setenv("PATH", str(wandb.parent))
    folders = [tmp_path / "wandb/offline-run-1", tmp_path / "a b/offline-run-2"]
    monkeypatch.setenv("WANDB_CODE", "0")
    send_offline_runs(folders)
    said = (tmp_path / "words").read_text().splitlines()
    assert said == ["sync", *map(str, folders)]
    monkeypatch.setenv("WANDB_CODE", "3")
    with pytest.raises(RefusedError, match="wandb sync left with 3"):
        send_offline_runs(folders)
    wandb.unlink()
    with pytest.raises(InvalidInputError, match="--sync: needs wandb"):
        send_offline_runs(folders)
