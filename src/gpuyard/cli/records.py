"""`gpuyard record` and `gpuyard rerun`: what a job ran, and the same once more."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.arguments import AsJson, Reference
from gpuyard.cli.output import (
    clock,
    cost_parts,
    duration_of,
    money,
    one_line,
    print_fields,
    print_json,
    say,
    say_lines,
    size,
)
from gpuyard.cli.session import connect
from gpuyard.cli.written import write_file
from gpuyard.client.curves import Curve
from gpuyard.client.run_page import run_page

if TYPE_CHECKING:
    from gpuyard.client.sync_job import JobHandle
    from gpuyard.domain.records import RunDifference, RunRecord

_POINTS = 2000


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(record)
    app.command()(rerun)


def record(
    job: Reference,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print how its code differed from git.")
    ] = False,
    packages: Annotated[
        bool, typer.Option("--packages", help="Print what was installed for it.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a report that one can send to this file instead."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job ran: command, code, packages, data, host, driver and seed."""
    with connect() as client:
        handle = client.job(job)
        found = handle.record()
        report = "" if html is None else _page(handle, found)
    if as_json:
        print_json(found)
    elif html is not None:
        write_file(html, report)
        say(f"wrote {html}")
    elif diff:
        say_lines(found.code.diff if found.code else "")
    elif packages:
        for line in found.packages.installed if found.packages else []:
            say(one_line(line))
    else:
        print_fields(_fields(found))


def rerun(
    job: Reference,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Do not follow it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a job once more with the code, environment, packages and data that it had,
    follow it, and say what differs.
    """
    from gpuyard.cli.follow import follow

    with connect(patient=not detach) as client:
        (again, notes) = client.job(job).rerun()
        if as_json:
            print_json({"job": again.info.model_dump(mode="json"), "notes": notes})
            return
        for note in notes:
            typer.echo(f"gpuyard: note: {one_line(note)}", err=True)
        if detach:
            typer.echo(again.id)
            return
        code = follow(again)
        for line in _differences(again.record()):
            typer.echo(f"gpuyard: {one_line(line)}", err=True)
    sys.exit(code)


def _differences(found: "RunRecord") -> list[str]:
    """How a run differs from the one that it repeats, a line each."""
    if not found.differences:
        return ["nothing differs from the run before"]
    return [
        f"differs from the run before: {each.what}: {_then_and_now(each)}"
        for each in found.differences
    ]


def _then_and_now(difference: "RunDifference") -> str:
    return f"{difference.before or 'none'} then, {difference.now or 'none'} now"


def _page(handle: "JobHandle", found: "RunRecord") -> str:
    """The report of a run, with its result, cost, files and curves."""
    job = handle.info
    fields = {
        **_fields(found),
        "exit code": found.attempts[-1].exit_code if found.attempts else None,
        "reason": job.reason,
        "warnings": "; ".join(job.warnings),
        "ended": job.ended_at and clock(job.ended_at),
        "ran for": duration_of(job),
        "cost": money(job.cost),
        "of it": cost_parts(job.cost),
    }
    packages = found.packages.installed if found.packages else []
    curves = {
        name: [Curve.of("A", found.name, found.id, points)]
        for name, points in handle.metrics(points=_POINTS).items()
        if points
    }
    return run_page(
        f"Run {found.name}",
        {name: "" if value is None else str(value) for name, value in fields.items()},
        {
            "Packages": "\n".join(packages),
            "Difference to git": found.code.diff if found.code else "",
        },
        [(file.path, size(file.size), file.sha256) for file in handle.artifacts()],
        curves,
    )


def _fields(found: "RunRecord") -> dict[str, Any]:
    last = found.attempts[-1] if found.attempts else None
    facts = last.facts if last else {}
    return {
        "job": found.id,
        "state": found.state,
        "command": shlex.join(found.command),
        "workdir": found.workdir,
        "seed": found.seed,
        "code": _code(found),
        "packages": _packages(found),
        "datasets": ", ".join(found.datasets),
        "workspace": found.workspace,
        "variables": ", ".join(
            f"{name}={value}" for name, value in found.environment.items()
        ),
        "secrets": ", ".join(found.secrets),
        "host": facts.get("host"),
        "gpus": facts.get("gpus"),
        "driver": facts.get("driver"),
        "python": facts.get("python"),
        "gpuyard": facts.get("gpuyard"),
        "trackers": " ".join(link.url for link in found.links),
        "started": last and last.started_at and clock(last.started_at),
        "repeats": found.rerun_of,
        "differs": "; ".join(
            f"{each.what} ({_then_and_now(each)})" for each in found.differences
        ),
    }


def _code(found: "RunRecord") -> str:
    code = found.code
    if code is None:
        return "not stored"
    words = [f"sha256 {code.digest[:12]}"]
    if code.commit:
        words.append(f"commit {code.commit[:12]}")
    if code.dirty:
        lines = code.diff.count("\n")
        words.append(f"with changes of {lines} lines (--diff)")
    return ", ".join(words) if code.stored else f"{words[0]}, no longer stored"


def _packages(found: "RunRecord") -> str:
    packages = found.packages
    if packages is None:
        return ""
    count = f"{len(packages.installed)} installed (--packages)"
    name = packages.file or "no longer stored"
    return f"{name}, sha256 {packages.digest[:12]}, {count}"
