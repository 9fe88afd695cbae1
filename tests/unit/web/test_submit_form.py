"""The form of a new job on the page: what is sent, and the same from a terminal."""

import shlex
from typing import Any

import pytest
import typer
from typer.main import get_command

from gpuyard.cli import run
from gpuyard.cli.run_fields import job_fields, schedule_fields
from gpuyard.cli.run_options import RunOptions
from gpuyard.domain.arrays import ArraySpec
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.packages import read_packages
from gpuyard.domain.reasons import RetryCause
from gpuyard.domain.schedules import ScheduleSpec
from gpuyard.domain.validation import parse_model
from tests.support.page_code import evaluate

FORM = ["submit/form.ts", "submit/terminal.ts", "submit/faults.ts"]
ZONE = "Europe/Berlin"
# 2098-12-01 18:00 there.
DEADLINE = 4068291600.0
SPEC: dict[str, Any] = {
    "command": ["python3", "train.py", "--seed", "{i}"],
    "name": "seeds",
    "priority": 4,
    "resources": {"gpus": {"count": 1}},
    "checkpoint": {"path": "out/{i}.pt"},
    "array": "0-9%2",
    "depends_on": ["prepare data", "job_1"],
    "depends_on_failed": ["first try"],
    "depends_on_any": ["array_2"],
    "held": True,
    "deadline": DEADLINE,
    "notify": ["mail:ana@example.org", "slack:https://hooks.example.org/T/B"],
    "secrets": {"HF_TOKEN": "HF_TOKEN", "HUB": "HF_TOKEN"},
    "labels": {"team": "vision", "note": "a = b"},
    "max_silence_s": 60,
}
# A job with all that the folded parts say of places, limits and files.
RARE: dict[str, Any] = {
    "command": ["python3", "train.py"],
    "name": "rare",
    "priority": 3,
    "image": "auto",
    "provider": "cloud",
    "allowed": {
        "providers": ["cloud", "local"],
        "regions": ["eu-1", "eu-2"],
        "quarantined": True,
    },
    "max_price": "2.50",
    "strategy": "availability",
    "spot": True,
    "resources": {
        "cpus": 4,
        "memory_gb": 8,
        "nodes": 2,
        "gpus": {"count": 8, "gpu_class": "A100", "compute_capability": "8.0"},
    },
    "timeout_s": 7200,
    "retry_count": 2,
    "retry_on": ["lost", "timeout"],
    "log_limit_gb": 0.2,
    "preemptible": True,
    "environment": {"GPUYARD_SEED": "7", "PYTHONHASHSEED": "7", "A": "b = c"},
    "checkpoint": {
        "path": "out/*.pt",
        "resume_args": ["--resume", "{path}"],
        "signal": "USR1",
        "grace_s": 45,
        "every_s": 600,
    },
    "artifacts": ["out/*.pt", "*.json"],
    "artifacts_always": True,
    "datasets": ["vision/photos@2", "text"],
    "workspace": "scratch",
}
# What somebody has filled in, and what the command for a terminal says in its options.
TYPED: dict[str, Any] = {
    "command": "python3 train.py {i}",
    "after": [
        {"job": "it's ready", "end": "depends_on"},
        {"job": "job_1", "end": "depends_on_failed"},
        {"job": "job_2", "end": "depends_on_any"},
        {"job": " ", "end": "depends_on"},
    ],
    "held": True,
    "labels": "team=vision\n\n note = a b \n",
    "notify": "mail:ana@example.org\nhttps://hooks.example.org/?a=b&c",
    "secrets": [
        {"name": "HF_TOKEN", "variable": ""},
        {"name": "HF_TOKEN", "variable": "HUB"},
        {"name": "", "variable": ""},
    ],
}
COMPARED = [
    *("array", "depends_on", "depends_on_failed", "depends_on_any", "held"),
    *("deadline", "labels", "notify", "secrets"),
]


def options_of(command: str) -> RunOptions:
    """What `gpuyard run` reads in this command."""
    program, name, *words = shlex.split(command)
    assert (program, name) == ("gpuyard", "run")
    app = typer.Typer()
    run.register(app)
    return RunOptions(**get_command(app).make_context("run", words).params)


def test_a_copied_job_is_the_same_job() -> None:
    packages = {"command": ["python3"], "packages": "ab" * 32}
    sized = {**RARE, "tier": "GPU_LARGE"}
    given = [SPEC, RARE, {**SPEC, **packages}, sized]
    copied = evaluate(FORM, "given.map((one) => specOf(formOf(one)))", given, ZONE)
    assert copied == given
    assert parse_model(ArraySpec, copied[0]).deadline == DEADLINE


def test_the_command_for_a_terminal_says_where_and_how_often() -> None:
    """And what is kept, and which packages: all that the folded parts have."""
    files = {"text": {"requirements.txt": "numpy"}, "base64": {}}
    form = {
        "logLimit": "200MB",
        "grace": "45",
        "timeout": "2h",
        "files": files,
        "packages": "requirements.txt",
        "rest": {},
    }
    sent, command = evaluate(
        FORM,
        "[{...formOf(given[0]), ...given[1]}].flatMap("
        "(form) => [specOf(form), terminalCommand(form)])",
        [RARE, form],
    )
    options = options_of(command)
    assert (options.seed, options.env) == (7, ["A=b = c"])
    assert sent.pop("environment") == RARE["environment"]
    assert options.packages == "requirements.txt"
    fields = {**job_fields(options), "packages": None}
    own = {"command": sent.pop("command"), "stdin": sent.pop("stdin")}
    job = parse_model(JobSpec, {**own, **sent})
    assert job == parse_model(JobSpec, {**own, **fields})
    # Nothing of it is what a job has anyway.
    shown = RARE.keys() - {"environment", "name", "priority"}
    assert shown <= job.given_json().keys()


def test_a_size_says_of_which_kind_the_gpus_are() -> None:
    form = {"command": "true", "tier": "GPU_LARGE", "gpuClass": "A100"}
    sent, command = evaluate(
        FORM,
        "[{...EMPTY, ...given}].flatMap((form) => [specOf(form), terminalCommand(form)])",
        form,
    )
    assert sent["resources"] == {}
    assert job_fields(options_of(command)) == {"tier": "GPU_LARGE"}


def test_a_file_of_the_program_names_its_packages() -> None:
    """It is sent with what belongs to it, and the server reads that."""
    text = {
        "train.py": "import numpy",
        "requirements-gpu.txt": "-r common.txt\n",
        "common.txt": "numpy\n",
    }
    files = {"text": text, "base64": {}}
    form = {"files": files, "packages": "requirements-gpu.txt"}
    modules = [*FORM, "submit/packages.ts"]
    offered, stored, later = evaluate(
        modules,
        "[listsAmong(given.files), listToStore({...EMPTY, ...given}),"
        " ownFaults({...EMPTY, packages: given.packages})]",
        form,
    )
    assert offered == ["requirements-gpu.txt"]
    del text["train.py"]
    assert stored == {"main": "requirements-gpu.txt", "files": text}
    assert read_packages(stored["main"], stored["files"]).files["common.txt"]
    assert [fault["field"] for fault in later] == ["packages"]


def test_the_form_knows_each_cause_to_try_again() -> None:
    assert evaluate(["submit/parts.ts"], "Object.keys(CAUSES)") == [*RetryCause]


def test_the_command_for_a_terminal_says_what_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", ZONE)
    form = {**TYPED, "array": "0-9:3%2", "deadline": "2098-12-01 18:00"}
    sent, command = evaluate(
        FORM,
        "[{...EMPTY, ...given}].flatMap((form) => [specOf(form), terminalCommand(form)])",
        form,
        ZONE,
    )
    fields = job_fields(options_of(command))
    assert {name: fields.get(name) for name in COMPARED} == {
        name: sent.get(name) for name in COMPARED
    }
    assert sent["labels"] == {"team": "vision", "note": "a b"}
    assert sent["secrets"] == {"HF_TOKEN": "HF_TOKEN", "HUB": "HF_TOKEN"}


def test_with_times_it_is_a_schedule_here_and_in_the_terminal() -> None:
    form = {
        "command": "true",
        "times": " 0 3 * * * ",
        "overlap": "queue",
        "startingDeadline": "2h",
        "deadline": "8h",
    }
    sent, command = evaluate(
        FORM,
        "[{...EMPTY, ...given}].flatMap((form) => "
        "[scheduleOf(form, specOf(form)), terminalCommand(form)])",
        form,
        ZONE,
    )
    options = options_of(command)
    assert not options.detach
    assert {**schedule_fields(options), "timezone": ZONE} == {
        name: value for name, value in sent.items() if name != "job"
    }
    schedule = parse_model(ScheduleSpec, sent)
    assert (schedule.deadline_s, schedule.job.deadline) == (8 * 3600, None)


def test_addresses_that_nobody_sees_again_are_not_sent() -> None:
    spec = {"command": ["true"], "notify": ["mail at example.org", "mail:a@b.org"]}
    expression = (
        "[formOf(given)].flatMap((form) => [form.withheld, specOf(form).notify])"
    )
    withheld, sent = evaluate(FORM, expression, spec)
    assert withheld == ["mail at example.org"]
    assert sent == ["mail:a@b.org"]


def test_a_date_with_a_time_is_one_of_here() -> None:
    moments: dict[str, float | str] = {
        "2098-12-01 18:00": DEADLINE,
        " 2098-12-01T18:00:30 ": DEADLINE + 30,
        # No such time is there: the server says so.
        "2098-02-31 10:00": "2098-02-31 10:00",
        "2026-03-29 02:30": "2026-03-29 02:30",
        # These are the server's to read.
        "8h": "8h",
        "2098-12-01T18:00+01:00": "2098-12-01T18:00+01:00",
    }
    read = evaluate(["submit/moments.ts"], "given.map(momentOf)", [*moments], ZONE)
    assert dict(zip(moments, read, strict=True)) == moments


def test_what_is_wrong_stands_at_its_field() -> None:
    faults = [
        ("deadline", "is past", "give a later time"),
        ("job.depends_on_any", "there is no job 'x'", "give a job's id, or its name"),
        ("secrets.HF_TOKEN", "there is no secret 'HF_TOKEN'", ""),
        ("secrets.A", "there is no secret 'B'", ""),
        ("notify.0", "is no address", ""),
        ("command[1]", "there is no script train.py", "check the path"),
        ("resources.gpus.memory_gb", "is 'much'", "write 16GB"),
        ("retry_count", "is 101", "must be at most 100"),
        ("allowed.regions[0]", "is no region", ""),
        ("checkpoint.signal", "is no signal", "write USR1"),
        ("artifacts_always", "is true, and artifacts names no files", "give both"),
        ("max_silence_s", "is 'long'", "write 60s"),
    ]
    given = [
        dict(zip(("field", "fault", "remedy"), one, strict=True)) for one in faults
    ]
    assert evaluate(FORM, "faultsByField(given)", given) == {
        "deadline": "is past (give a later time)",
        "after": "there is no job 'x' (give a job's id, or its name)",
        "secrets": "HF_TOKEN: there is no secret 'HF_TOKEN'; A: there is no secret 'B'",
        "notify": "is no address",
        "command": "there is no script train.py (check the path)",
        "memoryGb": "is 'much' (write 16GB)",
        "retries": "is 101 (must be at most 100)",
        "regions": "is no region",
        "signal": "is no signal (write USR1)",
        "artifacts": "is true, and artifacts names no files (give both)",
    }


def test_what_was_changed_since_is_not_called_wrong() -> None:
    faults = [
        {"field": field, "fault": "is no good", "remedy": ""}
        for field in ("deadline", "secrets")
    ]
    changed = 'stillWrong(given, EMPTY, {...EMPTY, deadline: "8h"})'
    assert evaluate(FORM, changed, faults) == {"secrets": "is no good"}


def test_what_does_not_go_together_is_found_before_it_is_sent() -> None:
    form = {
        "array": "0-9",
        "times": "@daily",
        "environment": "A=1\nB=\n HOME ",
        "seed": "4294967296",
        "secrets": [
            {"name": "A", "variable": ""},
            {"name": "B", "variable": "A"},
            {"name": "", "variable": "C"},
        ],
    }
    found = evaluate(FORM, "ownFaults({...EMPTY, ...given})", form)
    assert [fault["field"] for fault in found] == [
        *("array", "secrets.A", "secrets.C", "environment", "seed"),
    ]
    assert found[3]["fault"] == "'HOME' has no value"
    assert evaluate(FORM, "ownFaults({...EMPTY, ...given})", TYPED) == []


def test_only_secrets_that_ones_jobs_get_are_offered() -> None:
    facts = [
        {"name": "HUB", "owner": None, "reserved": False},
        {"name": "HUB", "owner": "ana", "reserved": False},
        {"name": "OF_BEN", "owner": "ben", "reserved": False},
        {"name": "SIGN_IN", "owner": None, "reserved": True},
    ]
    names = evaluate(
        ["submit/lists.ts"], '["ana", null].map((user) => namesFor(user, given))', facts
    )
    assert names == [["HUB"], ["HUB"]]
