"""`gpuyard run`: say what to run and what it needs; follow it to its end."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arrays import tell_submitted
from gpuyard.cli.code import with_code
from gpuyard.cli.command_body import command_body, read_input
from gpuyard.cli.follow import GPUYARD_FAULT, follow
from gpuyard.cli.options import (
    CpusOption,
    GpuClassOption,
    GpuMemoryOption,
    GpusOption,
    ImageOption,
    MaxPriceOption,
    MemoryOption,
    NodesOption,
    ProviderOption,
    QuarantinedOption,
    RegionOption,
    SecretOption,
    SpotOption,
    TierOption,
    TimeoutOption,
    WorkdirOption,
    WorkspaceOption,
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


def _is_of_python(module: str | None) -> None:
    """Somebody means `python -m MODULE`."""
    if module is not None:
        remedy = f"write `gpuyard run python -m {module}`"
        raise InvalidInputError.of("-m", "is an option of Python", remedy)


def _has_no_terminal(wanted: bool) -> None:
    """Somebody writes -it, as with `docker run`."""
    if wanted:
        fault = "asks for a terminal, and jobs get a pipe"
        remedy = (
            "write -i alone; for a terminal, start a shell beside the job: `gpuyard"
            " exec -t JOB -- bash`"
        )
        raise InvalidInputError.of("-t", fault, remedy)


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
    gpus: GpusOption = None,
    gpu_memory: GpuMemoryOption = None,
    gpu_class: GpuClassOption = None,
    cpus: CpusOption = None,
    memory: MemoryOption = None,
    nodes: NodesOption = None,
    image: ImageOption = None,
    tier: TierOption = None,
    timeout: TimeoutOption = None,
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
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive",
            "-i",
            help="Its input stays open: it gets what is typed here, and in `gpuyard"
            " attach`.",
        ),
    ] = False,
    workdir: WorkdirOption = None,
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
    provider: ProviderOption = None,
    region: RegionOption = None,
    allow_quarantined: QuarantinedOption = False,
    workspace: WorkspaceOption = None,
    max_price: MaxPriceOption = None,
    spot: SpotOption = False,
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
    array: Annotated[
        str | None,
        typer.Option(
            help="Once for each of these indices, such as 0-9, 0-9:3 or 1,4,7-9, with"
            " {i} or $GPUYARD_ARRAY_INDEX for the index; 0-1999%20 runs 20 at once."
        ),
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
    _module: Annotated[
        str | None,
        typer.Option("-m", hidden=True, is_eager=True, callback=_is_of_python),
    ] = None,
    _tty: Annotated[
        bool,
        typer.Option("-t", hidden=True, is_eager=True, callback=_has_no_terminal),
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
        interactive=interactive or None,
        array=array,
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
    if times and array is not None:
        fault = "does not go with --schedule"
        raise InvalidInputError.of("--array", fault, "give one of them")
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
        "--interactive",
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
        given_input = {} if stdin is None else {"stdin": read_input(stdin)}
        body = command_body(command, fields | given_input, env)
        with connect(patient=not detach) as client:
            if times:
                added = add(client, body, times)
                return _told(added, as_json=as_json)
            (filled_in,), notes = with_code(client, [body])
            if "array" in filled_in:
                array = client.submit_array(filled_in)
                return tell_submitted(
                    client, array, notes, detach=detach, as_json=as_json
                )
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
            typed = None
            if filled_in.get("interactive"):
                from gpuyard.cli.typed_input import JobInput

                typed = JobInput(client, job, empty_ends=True)
            return follow(job, typed=typed)
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
