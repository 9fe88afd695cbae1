"""`gpuyard`: all commands, and errors turned into one line and an exit code."""

import errno
import os
import sys
from functools import cache
from typing import Any

import typer

from gpuyard.cli import (
    artifacts,
    audit,
    batch,
    budgets,
    changes,
    checkpoints,
    cloud,
    compare,
    completion,
    datasets,
    dev,
    estimate,
    events,
    flow,
    groups,
    jobs,
    ledger,
    llm,
    login,
    logs,
    machines,
    mlflow,
    models,
    nodes,
    page,
    pools,
    project,
    recommend,
    records,
    report,
    reservations,
    resume,
    run,
    running,
    schedules,
    secret,
    server,
    service,
    shares,
    show,
    simulate,
    ssh,
    submit,
    sweep,
    templates,
    tensorboard,
    top,
    trackers,
    trust,
    users,
    why,
)
from gpuyard.cli.broken_pipe import discard_output
from gpuyard.cli.other_words import our_word
from gpuyard.cli.plugins import CommandsWithPlugins
from gpuyard.domain.errors import GpuyardError, InvalidInputError

_WHOLE = 1000  # characters
# A write that fails says no more: neither the library nor we have a better word.
_OF_DISKS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS))


class _Commands(CommandsWithPlugins):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; the word of another tool is told ours.
        `submit` with a program is `run --detach`.
        """
        ours = our_word(args[0])
        if ours is not None and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}. Did you mean `gpuyard {ours}`?")
        (name, command, rest) = super().resolve_command(ctx, args)
        if name == "submit" and submit.is_program(rest):
            return name, self.get_command(ctx, "run"), ["--detach", *rest]
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with the whole first sentence of each; Click would cut it
        at the end of the line.
        """
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        rows = [
            (command.name, command.get_short_help_str(limit=_WHOLE))
            for command in commands
            if not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a reader that stops reading (`| head`) is no error. The error
        of a wrong option names its value, which Typer leaves out.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            _name_value(error)
            raise
        except BrokenPipeError:
            discard_output()
            raise typer.Exit from None


def _name_value(error: typer.BadParameter) -> None:
    from pydantic import ValidationError

    if isinstance(error.__cause__, ValidationError):
        from gpuyard.domain.validation import value_in_words

        error.message = value_in_words(error.__cause__)


app = typer.Typer(
    name="gpuyard",
    cls=_Commands,
    help="One queue for all GPU work, on every GPU you can reach.",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    add_completion=False,
)
for module in (
    run,
    submit,
    jobs,
    show,
    logs,
    compare,
    tensorboard,
    mlflow,
    trackers,
    resume,
    records,
    why,
    events,
    running,
    ssh,
    dev,
    groups,
    changes,
    schedules,
    sweep,
    flow,
    batch,
    artifacts,
    checkpoints,
    datasets,
    machines,
    cloud,
    nodes,
    pools,
    page,
    estimate,
    top,
    models,
    llm,
    recommend,
    report,
    budgets,
    shares,
    reservations,
    trust,
    secret,
    users,
    login,
    project,
    templates,
    simulate,
    ledger,
    audit,
    server,
    service,
    completion,
):
    module.register(app)


def _version(value: bool) -> None:
    if value:
        from gpuyard import __version__

        typer.echo(f"gpuyard {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
    acts_for: str | None = typer.Option(
        None,
        "--as",
        metavar="USER",
        help="As an administrator: do it for this user, whose the jobs are then.",
    ),
) -> None:
    """One queue for all GPU work, on every GPU you can reach."""
    if acts_for is not None:
        from gpuyard.client.connection import act_for
        from gpuyard.domain.users import is_user_name

        if not is_user_name(acts_for):
            raise InvalidInputError.of(
                "--as", f"is {acts_for!r}", "give the name of a user, such as ana"
            )
        act_for(acts_for)


@cache
def click_command() -> Any:
    """All commands, as Typer makes them of the functions, which takes it a while."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command; a known error is one line on stderr and its exit code."""
    if "_GPUYARD_COMPLETE" in os.environ:
        # The scripts that older versions installed ask in Typer's own way.
        from typer._completion_classes import completion_init

        completion_init()
    try:
        click_command()()
    except GpuyardError as error:
        typer.echo(f"gpuyard: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None and error.errno not in _OF_DISKS:
            raise
        place = f"{error.filename}: " if error.filename else ""
        typer.echo(f"gpuyard: {place}{error.strerror}", err=True)
        sys.exit(InvalidInputError.exit_code)


if __name__ == "__main__":
    main()
