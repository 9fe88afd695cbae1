"""`gpuyard estimate`: where a job could run, how long that takes and what it costs,
before it is submitted.
"""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.command_body import command_body, is_job_file
from gpuyard.cli.foreign_jobs import from_task, is_batch_script
from gpuyard.cli.job_files import load_spec, read_jobs
from gpuyard.cli.options import (
    CpusOption,
    DeadlineOption,
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
    SpotOption,
    TierOption,
    TimeoutOption,
    WorkdirOption,
    WorkspaceOption,
    deadline_of,
    given,
    gpu_request,
)
from gpuyard.cli.output import print_json, print_table
from gpuyard.cli.recommend import headline
from gpuyard.cli.recommended import recommended, with_needs
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.units import format_duration

# Thousands of offers that do not suit would hide those that do.
_MOST_UNSUITED = 20
_COLUMNS = ("PLACE", "WAIT", "RUN", "PER HOUR", "COST", "KIND", "REGION", "NOW")


class _EstimateCommand(TyperCommand):
    """As for `run`, what follows a program is the program's. Options may follow a job
    file. Options of `run` that change no estimate are accepted, so that one can put
    `estimate` in place of `run` in a command line.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        own = super().get_params(ctx)
        names = {param.name for param in own}
        run = ctx.parent.command.get_command(ctx, "run") if ctx.parent else self
        others = [
            param
            for param in run.params
            if param.param_type_name == "option" and param.name not in names
        ]
        return [*own, *map(_unused, others)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        (values, _, _) = self.make_parser(ctx).parse_args(list(args))
        words = values.get("job")
        ctx.allow_interspersed_args = bool(words) and is_job_file(words[0])
        return super().parse_args(ctx, args)


def _unused(option: Any) -> Any:
    unused = copy(option)
    unused.expose_value = False
    unused.hidden = True
    return unused


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=_EstimateCommand)(estimate)


def estimate(
    job: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|COMMAND…",
            help="A job as .toml, .yaml or .json (`-`: standard input), or what"
            " `gpuyard run` takes.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Its name: it is expected to run as long as others of it."),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            help="Its project: where shares count, it stands in the line of that.",
            autocompletion=suggest.projects,
        ),
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
    deadline: DeadlineOption = None,
    hours: Annotated[
        str | None,
        typer.Option("--time", help="It is expected to run so long, such as 2h."),
    ] = None,
    workdir: WorkdirOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    allow_quarantined: QuarantinedOption = False,
    workspace: WorkspaceOption = None,
    max_price: MaxPriceOption = None,
    spot: SpotOption = False,
    array: Annotated[
        str | None,
        typer.Option(help="It has these tasks, such as 0-9; the figures are of one."),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="cost, performance, availability or balanced; default: as configured.",
            autocompletion=suggest.strategies,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say where a job could run, best place first: the wait, the run, the price, and
    why the others do not suit.
    """
    wanted_gpus = gpu_request(gpus, given(memory_gb=gpu_memory, gpu_class=gpu_class))
    fields = given(
        name=name,
        project=project,
        image=image,
        tier=tier,
        timeout_s=timeout,
        deadline=deadline_of(deadline),
        estimated_duration_s=hours,
        workdir=str(workdir.absolute()) if workdir else None,
        array=array,
        provider=provider,
        workspace=workspace,
        max_price=max_price,
        spot=spot or None,
        allowed=given(regions=region or None, quarantined=allow_quarantined or None)
        or None,
        resources=given(
            cpus=cpus, memory_gb=memory, nodes=nodes, gpus=wanted_gpus or None
        )
        or None,
    )
    _estimate(_body(job or [], fields), strategy, as_json=as_json)


def _estimate(body: Any, strategy: str | None, *, as_json: bool) -> None:
    """Ask for it, with the needs of its program where the job names none."""
    from gpuyard.client import calls

    needs = None
    with connect() as client:
        if isinstance(body, dict):
            given_body = cast("dict[str, Any]", body)
            needs = recommended(given_body, client)
            body = with_needs(given_body, needs) if needs else given_body
        found = client.call(calls.estimate(body, strategy))
    if as_json:
        print_json({**found, "recommendation": needs})
        return
    if needs:
        typer.echo(headline(needs))
    _tell(found)


def _body(words: Sequence[str], fields: dict[str, Any]) -> Any:
    """The job that is meant: of a file, a command, or any with these fields."""
    if not words:
        return {"command": ["true"], **fields}
    if not is_job_file(words[0]):
        return command_body(words, fields, [], writes=False)
    if fields or len(words) > 1:
        raise InvalidInputError.of(
            "file",
            "comes with words that say what it says",
            "give a file, or a command with its options",
        )
    path = Path(words[0])
    if is_batch_script(path):
        return read_jobs(path)[0].body
    document = load_spec(path)
    task = from_task(document, path)
    return document if task is None else task.body


def _tell(found: dict[str, Any]) -> None:
    places = found["items"]
    suited = [place for place in places if place["suits"]]
    others = [place for place in places if not place["suits"]]
    run = format_duration(found["run_s"])
    typer.echo(f"Strategy {found['strategy']}; it runs {run} ({found['basis']}).")
    if found.get("in_the_way"):
        typer.echo(found["in_the_way"])
    if found.get("deadline"):
        typer.echo(found["deadline"])
    if found.get("tasks"):
        typer.echo(_about_all(found["tasks"], suited, found))
    rows = [_row(place, found) for place in suited]
    print_table(_COLUMNS, rows, empty="Nothing suits it.")
    _tell_unsuited(others)


def _row(place: dict[str, Any], found: dict[str, Any]) -> tuple[Any, ...]:
    """A place that suits, as `_COLUMNS`."""
    return (
        place["name"],
        _time(place["wait_s"]),
        _time(place["run_s"]),
        _money(place["per_hour"], found),
        _money(place["cost"], found),
        "spot" if place["spot"] else None,
        place["region"],
        "; ".join(place["reasons"]),
    )


def _tell_unsuited(places: Sequence[dict[str, Any]]) -> None:
    for place in places[:_MOST_UNSUITED]:
        typer.echo(f"  {place['name']} {'; '.join(place['reasons'])}")
    more = len(places) - _MOST_UNSUITED
    if more > 0:
        typer.echo(f"  … and {more} more that do not suit; --json tells all")


def _about_all(
    tasks: int, suited: Sequence[dict[str, Any]], found: dict[str, Any]
) -> str:
    """What the figures mean for an array."""
    words = f"The figures are those of one of its {tasks:,} tasks"
    if not suited or suited[0]["cost"] is None:
        return f"{words}."
    cost = _money(tasks * suited[0]["cost"], found)
    return f"{words}; all of them cost {cost} at the first place."


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return format_duration(seconds) if seconds else "none"


def _money(amount: float | None, found: dict[str, Any]) -> str:
    return "?" if amount is None else f"{amount:.3g} {found['currency']}"
