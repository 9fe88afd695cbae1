"""`gpuyard sweep`: one program many times, with other arguments each time."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from gpuyard.cli.command_body import command_body
from gpuyard.cli.jobs import AsJson
from gpuyard.cli.notices import with_usual
from gpuyard.cli.options import given, pairs_of
from gpuyard.cli.output import print_json, print_page, print_table
from gpuyard.cli.run_fields import job_fields
from gpuyard.cli.run_options import RunOptions
from gpuyard.cli.session import connect
from gpuyard.client.extras import needs_extra
from gpuyard.domain.errors import GpuyardError, InvalidInputError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.sweeps.sweep import Sweep

_INTERRUPTED = 130
_COLUMNS = ("RUN", "JOB", "STATE", "VALUE", "PARAMETERS")
# These make no sense for a job that is run many times at once.
_NOT_OF_A_SWEEP = {
    "array",
    "schedule",
    "timezone",
    "overlap",
    "starting_deadline",
    "idempotency_key",
    "git",
    "interactive",
    "stdin",
    "hold",
    "detach",
    "as_json",
    "module",
    "tty",
}

SweepName = Annotated[str, typer.Argument(metavar="SWEEP", help="Its name, or its id.")]


@dataclass(kw_only=True)
class SweepOptions:
    """What `gpuyard sweep` has besides the options of `gpuyard run`."""

    param: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUES: 2,4,8, or 1..10, or 0..1:0.1, or log:1e-4..1e-1."
        ),
    ] = None
    metric: Annotated[
        str | None, typer.Option(help="The metric that the runs are judged by.")
    ] = None
    goal: Annotated[
        str | None, typer.Option(help="minimize (the default) or maximize.")
    ] = None
    take: Annotated[
        str | None,
        typer.Option(help="Its last value of a run counts (the default), or its best."),
    ] = None
    method: Annotated[
        str | None,
        typer.Option(help="grid, random, tpe, gp, cmaes or nsgaii."),
    ] = None
    pruner: Annotated[
        str | None,
        typer.Option(
            help="Give up bad runs: median, percentile, successive-halving, hyperband."
        ),
    ] = None
    trials: Annotated[int | None, typer.Option(help="How many runs at most.")] = None
    parallel: Annotated[
        int | None, typer.Option(help="How many at once; default 1.")
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="The same seed makes the same values.")
    ] = None
    max_failures: Annotated[
        int | None,
        typer.Option(help="Give up when the first so many have failed; default 3."),
    ] = None
    as_json: AsJson = False


class _SweepCommands(TyperGroup):
    """Where no command is meant, `run` is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.list_commands(ctx), "-h", "--help"}
        if args and args[0] not in known:
            args = ["run", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    sweep = typer.Typer(
        cls=_SweepCommands,
        help="Run a program many times with other arguments, and find the best.",
        no_args_is_help=True,
    )
    settings = {"ignore_unknown_options": False}
    sweep.command("run", help=_run.__doc__, context_settings=settings)(_command())
    sweep.command("list")(listing)
    sweep.command()(show)
    sweep.command()(stop)
    sweep.command()(resume)
    app.add_typer(sweep, name="sweep")


def _command() -> Any:
    """The function whose signature has the options of both."""

    def command(**values: Any) -> None:
        own = {name: values.pop(name) for name in _parameters(SweepOptions)}
        _run(RunOptions(**values), SweepOptions(**own))

    ours = _parameters(SweepOptions)
    theirs = {
        name: parameter
        for name, parameter in _parameters(RunOptions).items()
        if name not in _NOT_OF_A_SWEEP
    }
    first = {name: theirs.pop(name) for name in ("command", "name")}
    signature = inspect.Signature([*(first | ours | theirs).values()])
    command.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return command


def _parameters(options: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(options).parameters)


@needs_extra("sweep", "sweep")
def _run(job: RunOptions, options: SweepOptions) -> None:
    """Run COMMAND once for each choice of its parameters, or what a sweep's .toml file
    says, and watch it to its end. `{lr}` in COMMAND stands for the value of the
    parameter lr; otherwise it is added as --lr VALUE. Words for the program itself
    stand behind `--`.
    """
    from gpuyard.sweeps.choosers import chooser_of
    from gpuyard.sweeps.records import SweepRecords
    from gpuyard.sweeps.spec import parse

    fields = _fields(job, options)
    fields["job"] = with_usual(fields["job"])
    named = "name" in fields
    spec = parse({"name": _name_of(fields["job"]), **fields})
    chooser_of(spec)  # what is wrong with it is told before anything is recorded
    with connect(patient=True) as client:
        sweep = SweepRecords(client).create(spec, numbered=not named)
        _drive(client, sweep, as_json=options.as_json)


def _fields(job: RunOptions, options: SweepOptions) -> dict[str, Any]:
    """The fields of a SweepSpec, from a file and from flags."""
    of_job = job_fields(job)
    of_job.pop("name", None)
    said = given(
        name=job.name,
        metric=options.metric,
        goal=options.goal,
        take=options.take,
        method=options.method,
        pruner=options.pruner,
        trials=options.trials,
        parallel=options.parallel,
        seed=options.seed,
        max_failures=options.max_failures,
    )
    words = options.param or []
    parameters = pairs_of("param", words, {})
    if len(parameters) < len(words):
        remedy = "name each parameter once, such as lr=0.1,0.01"
        raise InvalidInputError.of("--param", "names a parameter twice", remedy)
    if len(job.words) == 1 and job.words[0].endswith(".toml"):
        from_file = _from_file(Path(job.words[0]), of_job)
        both = {**from_file.get("parameters", {}), **parameters}
        return {**from_file, **said, "parameters": both}
    body = command_body(job.words, of_job, job.env or [])
    return {**said, "parameters": parameters, "job": body}


def _from_file(path: Path, of_job: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep's file; its job runs in the folder of the file."""
    from gpuyard.cli.job_files import at_home, load_spec, merge

    document = load_spec(path)
    job = document.get("job")
    if not isinstance(job, dict):
        remedy = "write a table [job] with the program: command = [...]"
        raise InvalidInputError.of(f"{path}: job", "is missing", remedy)
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        remedy = "write a table [parameters]"
        raise InvalidInputError.of(f"{path}: parameters", "is no table", remedy)
    at_place = at_home(cast("dict[str, Any]", job), path.absolute().parent)
    return {**document, "job": merge(at_place, of_job)}


def _name_of(body: Mapping[str, Any]) -> str:
    """The name of the script, without its ending."""
    given_name = body.get("name")
    words = [given_name, *body.get("command", ["sweep"])]
    name = next(str(word) for word in words if word)
    return Path(name).stem or "sweep"


def _drive(client: "Client", sweep: "Sweep", *, as_json: bool) -> None:
    """Drive a sweep to its end, and show how it goes."""
    from gpuyard.cli.sweep_view import watching
    from gpuyard.sweeps.choosers import chooser_of
    from gpuyard.sweeps.driver import Driver

    name = sweep.spec.name
    try:
        with watching(sweep, quiet=as_json) as tell:
            done = Driver(client, sweep, chooser_of(sweep.spec), tell).drive()
    except KeyboardInterrupt:
        typer.echo(
            f"gpuyard: what runs goes on; `gpuyard sweep resume {name}` goes on with"
            f" the sweep, `gpuyard sweep stop {name}` ends it",
            err=True,
        )
        sys.exit(_INTERRUPTED)
    if as_json:
        print_json(done.as_json())
    else:
        _tell_end(done)
    if done.state != "completed":
        raise typer.Exit(1)


def _tell_end(sweep: "Sweep") -> None:
    counts = ", ".join(f"{count} {state}" for state, count in sweep.counts.items())
    typer.echo(f"{sweep.spec.name}: {sweep.state} · {counts}")
    best = sweep.best
    if best is not None:
        reached = f"{sweep.spec.metric} {best.value:g}"
        parameters = best.parameters.items()
        chosen = " ".join(f"{name}={value}" for name, value in parameters)
        typer.echo(f"best: {best.job.name}  {reached}  {chosen}")


def listing(as_json: AsJson = False) -> None:
    """List the sweeps, newest first."""
    from gpuyard.sweeps.records import SweepRecords

    with connect() as client:
        sweeps = SweepRecords(client).all()
    if as_json:
        print_page([sweep.as_json() for sweep in sweeps])
        return
    columns = ("NAME", "STATE", "RUNS", "OF", "METRIC", "BEST", "RUN")
    print_table(columns, [_row(sweep) for sweep in sweeps], empty="There is no sweep.")


def _row(sweep: "Sweep") -> tuple[Any, ...]:
    best = sweep.best
    value = None if best is None or best.value is None else f"{best.value:g}"
    return (
        sweep.spec.name,
        sweep.state,
        str(len(sweep.runs)),
        str(sweep.spec.count()),
        sweep.spec.metric,
        value,
        best.job.name if best else None,
    )


def show(name: SweepName, as_json: AsJson = False) -> None:
    """Show the runs of a sweep, the best first."""
    from gpuyard.cli.sweep_view import run_rows
    from gpuyard.sweeps.records import SweepRecords

    with connect() as client:
        sweep = SweepRecords(client).find(name)
    if as_json:
        print_json(sweep.as_json())
        return
    print_table(_COLUMNS, run_rows(sweep), empty="It has no run yet.")
    _tell_end(sweep)
    if sweep.state == "open" and all(run.is_over for run in sweep.runs):
        typer.echo(
            "Nothing of it runs; if its command has ended, `gpuyard sweep resume"
            f" {sweep.spec.name}` goes on with it."
        )


def stop(name: SweepName, as_json: AsJson = False) -> None:
    """Stop a sweep: end what runs, and start no more."""
    from gpuyard.client import calls
    from gpuyard.sweeps.records import SweepRecords

    with connect() as client:
        records = SweepRecords(client)
        sweep = records.find(name)
        client.call(calls.cancel(sweep.gate.id))
        live = [run.job.id for run in records.find(sweep.id).runs if not run.is_over]
        if live:
            client.cancel_jobs(*live)
            client.wait_for(*live)
        stopped = records.find(sweep.id)
    if as_json:
        print_json(stopped.as_json())
    else:
        _tell_end(stopped)


@needs_extra("sweep", "sweep")
def resume(name: SweepName, as_json: AsJson = False) -> None:
    """Go on with a sweep whose command has ended, or that was stopped.

    What has run does not run again; what a stop has ended goes on from its newest
    checkpoint.
    """
    from gpuyard.sweeps.records import SweepRecords

    with connect(patient=True) as client:
        records = SweepRecords(client)
        sweep = records.find(name)
        if sweep.state == "failed":
            raise GpuyardError(
                f"Each run of the sweep {name} has failed, and it has the program of"
                " then.",
                "Start a new sweep with the corrected program.",
            )
        if sweep.state == "stopped":
            sweep = records.reopen(sweep)
        if sweep.state == "open":
            _drive(client, sweep, as_json=as_json)
            return
    if as_json:
        print_json(sweep.as_json())
    else:
        _tell_end(sweep)
