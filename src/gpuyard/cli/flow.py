"""`gpuyard flow`: steps that need one another, of which only those run that have
changed.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.job_files import load_spec
from gpuyard.cli.jobs import AsJson
from gpuyard.cli.notices import named, usual
from gpuyard.cli.options import DeadlineOption, deadline_of
from gpuyard.cli.output import print_json
from gpuyard.cli.run_options import NotifyOption
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuyard.client.sync import Client
    from gpuyard.flows.runner import StepEnd
    from gpuyard.flows.spec import Flow

_INTERRUPTED = 130
_TAIL = 5

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The flow, as .toml, .yaml or .json.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    flow = typer.Typer(
        help="Run steps that need one another; only what has changed.",
        no_args_is_help=True,
    )
    flow.command("run")(run)
    flow.command("check")(check)
    app.add_typer(flow, name="flow")


def run(
    file: File,
    force: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP", help="Run this step whatever was done before."),
    ] = None,
    deadline: DeadlineOption = None,
    notify: NotifyOption = None,
    as_json: AsJson = False,
) -> None:
    """Run the steps of a flow, each when what it needs is done. A step whose job and
    inputs are as they were, and whose outputs are there, does not run again.
    """
    from gpuyard.flows.runner import Runner, StepEnd

    flow = _load(file)
    addresses = _whom_to_tell(notify)
    until = deadline_of(deadline)
    _refuse_unknown(force or [], flow)
    folder = file.absolute().parent.resolve()
    with connect(patient=True) as client:
        told = _say_nothing if as_json else _say
        runner = Runner(client, flow, folder, told, force or [], until)
        try:
            done = runner.run()
        except KeyboardInterrupt:
            typer.echo(
                f"gpuyard: what runs goes on; `gpuyard flow run {file}` goes on with"
                " the flow",
                err=True,
            )
            sys.exit(_INTERRUPTED)
        except GpuyardError as error:
            refused = StepEnd(flow.name, "failed", str(error))
            _tell_end(client, flow, [*runner.done.values(), refused], addresses)
            raise
        _tell_end(client, flow, done, addresses)
        if as_json:
            steps = [one.as_json() for one in done]
            print_json({"name": flow.name, "steps": steps})
        bad = [one for one in done if not one.is_fine]
        for one in bad:
            _tell_failure(client, one)
    if bad:
        raise typer.Exit(1)


def check(file: File, as_json: AsJson = False) -> None:
    """Check a flow without running it, and print its steps in order."""
    flow = _load(file)
    if as_json:
        print_json(flow)
        return
    for name, step in flow.steps.items():
        needs = f"  after {', '.join(step.needs)}" if step.needs else ""
        typer.echo(f"{name}{needs}")


def _load(file: Path) -> "Flow":
    from gpuyard.flows.spec import parse

    return parse(load_spec(file), file.absolute().parent.name or "flow")


def _say(done: "StepEnd") -> None:
    why = f" · {done.why}" if done.why else ""
    typer.echo(f"{done.step}: {done.state}{why}")


def _refuse_unknown(names: "Sequence[str]", flow: "Flow") -> None:
    """InvalidInputError if one of the names is no step of the flow."""
    for name in names:
        if name not in flow.steps:
            remedy = f"there are {', '.join(flow.steps)}"
            raise InvalidInputError.of("--force", f"{name!r} is no step", remedy)


def _say_nothing(_done: "StepEnd") -> None:
    pass


def _whom_to_tell(words: list[str] | None) -> list[str]:
    """The addresses that are told of the end. InvalidInputError."""
    from gpuyard.flows.end_notice import check_addresses

    said = named(words)
    addresses = usual() if said is None else said
    check_addresses(addresses, "--notify")
    return addresses


def _tell_end(
    client: "Client", flow: "Flow", done: "Sequence[StepEnd]", addresses: list[str]
) -> None:
    """Tell of the end of the flow; a refused address changes nothing of it."""
    if not addresses:
        return
    from gpuyard.flows.end_notice import tell_end

    try:
        tell_end(client, flow, done, addresses)
    except GpuyardError as error:
        typer.echo(f"gpuyard: nobody was told of the end: {error}", err=True)


def _tell_failure(client: "Client", done: "StepEnd") -> None:
    """The end of the output of a step that has failed."""
    if done.job is None:
        return
    output = b"".join(client.log_bytes(done.job.id, lines=_TAIL))
    tail = output.decode(errors="replace").strip() or "(no output)"
    code = "" if done.job.exit_code is None else f" · exit code {done.job.exit_code}"
    typer.echo(
        f"gpuyard: step {done.step}: {done.state}{code}; its last lines:\n{tail}",
        err=True,
    )
