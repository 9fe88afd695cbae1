"""`gpuyard run`: say what to run and what it needs; follow it to its end."""

import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.code import with_code
from gpuyard.cli.follow import GPUYARD_FAULT, follow
from gpuyard.cli.interpreters import with_interpreter
from gpuyard.cli.job_files import load_spec, merge
from gpuyard.cli.options import (
    SecretOption,
    given,
    gpu_request,
    pairs_of,
    secrets_of,
    words_of,
)
from gpuyard.cli.output import print_json, short_id
from gpuyard.cli.schedules import (
    OverlapOption,
    StartingDeadlineOption,
    TimeZoneOption,
    add,
)
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError, InvalidInputError

if TYPE_CHECKING:
    from gpuyard.domain.schedules import Schedule

Command = Annotated[
    list[str],
    typer.Argument(
        metavar="COMMAND…", help="A program, a .py or .sh file, or a template's name."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        context_settings={
            "ignore_unknown_options": False,
            "allow_interspersed_args": False,
        }
    )(run)


def run(
    command: Command,
    name: Annotated[
        str | None, typer.Option(help="Its name, for `jobs`, `logs` and so on.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            "-g",
            help="How many GPUs, or which: 2, A100:8, 4x80GB.",
            autocompletion=suggest.gpu_wishes,
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            help="Each with at least so much memory, such as 16GB.",
            autocompletion=suggest.gpu_sizes,
        ),
    ] = None,
    gpu_class: Annotated[
        str | None,
        typer.Option(
            help="Each of this class, such as A100.", autocompletion=suggest.gpu_classes
        ),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(help="CPU cores; also the limit.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory, such as 8GB; also the limit.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(help="So many machines at once; all figures are per machine."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="Run it in a container of this image; `auto`: chosen by its imports."
        ),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(
            help="A named size instead; see `gpuyard tiers`.",
            autocompletion=suggest.tiers,
        ),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(help="End it after so long: 90s, 15m, 2h, or seconds.")
    ] = None,
    retries: Annotated[
        int | None, typer.Option(help="Try again so often when it fails or times out.")
    ] = None,
    retry_on: Annotated[
        str | None,
        typer.Option(
            help="Try again only after these: timeout,failure,lost; default: all."
        ),
    ] = None,
    log_limit_gb: Annotated[
        str | None,
        typer.Option(
            help="Keep only the end of its output, so many gigabytes, or such as 200MB."
        ),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="1 to 5; 5 is urgent, 3 the default.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, or NAME to pass this shell's value."),
    ] = None,
    clean_env: Annotated[
        bool,
        typer.Option(
            "--clean-env",
            help="Take only PATH, LANG and the active Python from this shell; the rest"
            " is the server's.",
        ),
    ] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="It runs the code as it is when it starts, not as it is now.",
        ),
    ] = False,
    secret: SecretOption = None,
    stdin: Annotated[
        Path | None,
        typer.Option(help="A file for its standard input; `-`: this command's own."),
    ] = None,
    workdir: Annotated[
        Path | None, typer.Option(help="Where it runs; default: here.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Pattern of its checkpoints, such as 'out/*.pt'.")
    ] = None,
    resume_args: Annotated[
        str | None,
        typer.Option(
            help="Added to the command when it goes on from a checkpoint, such as"
            " '--resume {path}'."
        ),
    ] = None,
    checkpoint_signal: Annotated[
        str | None,
        typer.Option(
            help="Signal that makes it save, such as USR1.",
            autocompletion=suggest.signals,
        ),
    ] = None,
    grace: Annotated[
        str | None, typer.Option(help="Time to save before it is ended; default 30s.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            help="Only after this job has completed.", autocompletion=suggest.jobs
        ),
    ] = None,
    after_failed: Annotated[
        list[str] | None,
        typer.Option(
            help="Only after this job has ended without being completed.",
            autocompletion=suggest.jobs,
        ),
    ] = None,
    after_any: Annotated[
        list[str] | None,
        typer.Option(
            help="Only after this job has ended in any way.",
            autocompletion=suggest.jobs,
        ),
    ] = None,
    hold: Annotated[
        bool,
        typer.Option("--hold", help="Let it not start before `gpuyard release`."),
    ] = False,
    project: Annotated[
        str | None,
        typer.Option(
            help="The project that it belongs to.", autocompletion=suggest.projects
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE, for finding it again.", autocompletion=suggest.labels
        ),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="Only on this provider.", autocompletion=suggest.providers),
    ] = None,
    region: Annotated[
        list[str] | None,
        typer.Option(help="In clouds, only this region; repeat for more."),
    ] = None,
    allow_quarantined: Annotated[
        bool,
        typer.Option(
            "--allow-quarantined",
            help="Also in places that are in quarantine; see `gpuyard trust`.",
        ),
    ] = False,
    workspace: Annotated[
        str | None,
        typer.Option(
            help="A folder that outlives the job; see `gpuyard workspace`.",
            autocompletion=suggest.workspaces,
        ),
    ] = None,
    max_price: Annotated[
        str | None, typer.Option(help="In clouds, at most this price per hour.")
    ] = None,
    spot: Annotated[
        bool,
        typer.Option("--spot", help="Use spot offers: cheaper, and may be taken back."),
    ] = False,
    preemptible: Annotated[
        bool,
        typer.Option(
            "--preemptible", help="It may have to make room for a more urgent job."
        ),
    ] = False,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="Which offer is best: cost, performance, availability or balanced.",
            autocompletion=suggest.strategies,
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="A key of your own: used twice, it makes one job."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Not now, but at these times: '0 3 * * *' or @daily; see `gpuyard"
            " schedule`."
        ),
    ] = None,
    timezone: TimeZoneOption = None,
    overlap: OverlapOption = None,
    starting_deadline: StartingDeadlineOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Print the job's id and leave.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the job as JSON and leave.")
    ] = False,
) -> None:
    """Run COMMAND on a GPU that fits and follow it; its exit code becomes this
    command's.
    """
    wanted_gpus = gpu_request(gpus, given(memory_gb=gpu_memory, gpu_class=gpu_class))
    fields = given(
        name=name,
        image=image,
        tier=tier,
        timeout_s=timeout,
        retry_count=retries,
        retry_on=retry_on,
        log_limit_gb=log_limit_gb,
        priority=priority,
        project=project,
        workspace=workspace,
        provider=provider,
        max_price=max_price,
        strategy=strategy,
        spot=spot or None,
        preemptible=preemptible or None,
        clean_env=clean_env or None,
        live=live or None,
        allowed=given(regions=region or None, quarantined=allow_quarantined or None)
        or None,
        idempotency_key=idempotency_key,
        depends_on=after or None,
        depends_on_failed=after_failed or None,
        depends_on_any=after_any or None,
        held=hold or None,
        labels=pairs_of("label", label or [], {}) or None,
        secrets=secrets_of(secret or []) or None,
        resources=given(
            cpus=cpus, memory_gb=memory, nodes=nodes, gpus=wanted_gpus or None
        )
        or None,
        checkpoint=given(
            path=checkpoint,
            signal=checkpoint_signal,
            grace_s=grace,
            resume_args=words_of("--resume-args", resume_args),
        )
        or None,
        workdir=str(workdir.absolute()) if workdir else None,
    )
    _note_misplaced(command)
    times = given(
        cron=schedule,
        timezone=timezone,
        overlap=overlap,
        starting_deadline_s=starting_deadline,
    )
    if times and schedule is None:
        option = f"--{next(iter(times)).removesuffix('_s').replace('_', '-')}"
        raise InvalidInputError.of(option, "belongs to --schedule", "add --schedule")
    sys.exit(
        _guarded(
            command, fields, env or [], stdin, times, detach=detach, as_json=as_json
        )
    )


def _note_misplaced(command: Sequence[str]) -> None:
    """An option of ours behind the program is the program's; say so, because it is
    rarely meant.
    """
    ours = {
        "--gpus",
        "-g",
        "--gpu-memory",
        "--gpu-class",
        "--cpus",
        "--memory",
        "--tier",
        "--timeout",
        "--nodes",
        "--image",
        "--detach",
        "-d",
    }
    behind = [word for word in command[1:] if word.split("=")[0] in ours]
    if behind and "--" not in sys.argv:
        typer.echo(
            f"gpuyard: note: {behind[0]} after {command[0]} goes to {command[0]}; to"
            f" say it to gpuyard write `gpuyard run {behind[0]} … {command[0]}`, and --"
            f" before {command[0]} if you mean it",
            err=True,
        )


def _guarded(
    command: list[str],
    fields: dict[str, Any],
    env: list[str],
    stdin: Path | None,
    times: dict[str, Any],
    *,
    detach: bool,
    as_json: bool,
) -> int:
    """Run it, or at these `times`; when gpuyard itself is at fault the code is 125, so
    that it is not taken for the job's.
    """
    try:
        body = _body(
            command,
            fields | ({} if stdin is None else {"stdin": _read_input(stdin)}),
            env,
        )
        with connect(patient=not detach) as client:
            if times:
                added = add(client, body, times)
                return _told(added, as_json=as_json)
            (filled_in,), notes = with_code(client, [body])
            job = client.run(filled_in)
            for note in notes:
                typer.echo(f"gpuyard: note: {note}", err=True)
            if job.info.held:
                release = f"gpuyard release {short_id(job.id)}"
                typer.echo(f"gpuyard: note: it is held until `{release}`", err=True)
            for warning in job.info.warnings:
                typer.echo(f"gpuyard: note: {warning}", err=True)
            if as_json:
                print_json(job.info)
                return 0
            if detach:
                typer.echo(job.id)
                return 0
            return follow(job)
    except GpuyardError as error:
        typer.echo(f"gpuyard: {error}", err=True)
        follows = not (detach or as_json or times)
        return GPUYARD_FAULT if follows else error.exit_code


def _told(schedule: "Schedule", *, as_json: bool) -> int:
    if as_json:
        print_json(schedule)
    else:
        typer.echo(schedule.id)
    return 0


def _body(
    command: Sequence[str], fields: dict[str, Any], env: Sequence[str]
) -> dict[str, Any]:
    import os

    from gpuyard import templates
    from gpuyard.client.calls import current_folder, shell_environment

    base: dict[str, Any] = {"workdir": current_folder()}
    words = list(command)
    if (
        words[0] in templates.names()
        and not Path(words[0]).exists()
        and not shutil.which(words[0])
    ):
        base = _template_body(words[0])
        words = [*base["command"], *words[1:]]
    else:
        words = with_interpreter(words, Path(fields.get("workdir") or "."))
    if "name" not in fields:
        fields["name"] = base.get("name") or _name_of(words)
    environment = (
        shell_environment()
        | base.get("environment", {})
        | pairs_of("env", env, os.environ)
    )
    merged = merge(base, fields)
    return {**merged, "command": words, "environment": environment}


def _read_input(path: Path) -> str:
    """What the command is to read: a file's text, or standard input's for `-`."""
    from gpuyard.domain.jobspec import MAX_SPEC_BYTES

    most = f"{MAX_SPEC_BYTES / 1e6:.0f} MB"
    try:
        with (
            nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb")
        ) as file:
            content = file.read(MAX_SPEC_BYTES + 1)
        if len(content) > MAX_SPEC_BYTES:
            remedy = "let the program read a large input from a file"
            raise InvalidInputError.of(
                "--stdin", f"{path} is more than the {most} a job may have", remedy
            )
        return content.decode()
    except OSError as error:
        raise InvalidInputError.of(
            "--stdin", f"{path} cannot be read: {error.strerror}", "check the path"
        ) from None
    except UnicodeDecodeError:
        fault = f"{path} is not UTF-8 text"
        raise InvalidInputError.of(
            "--stdin", fault, "let the program read it from a file"
        ) from None


def _template_body(name: str) -> dict[str, Any]:
    """A template run by name: written out anew into a folder under the home, and its
    own job file.
    """
    import time

    from gpuyard import templates
    from gpuyard.config.paths import Home

    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Home.find().runs / f"{name}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{name}-{stamp}-{number}")
    templates.write(name, folder)
    typer.echo(f"gpuyard: {name} written to {folder}", err=True)
    return {**load_spec(folder / "job.toml"), "workdir": str(folder)}


def _name_of(words: Sequence[str]) -> str:
    """The script's or the program's name."""
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    name = Path(scripts[0] if scripts else words[0]).name
    return "".join(c for c in name if c.isprintable())[:60] or "job"
