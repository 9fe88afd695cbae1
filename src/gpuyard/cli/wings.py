"""Commands that wings bring along, found by the entry-point group `gpuyard.wings`, which packages of others may join.

A wing is asked for its commands when one of them is meant. Until then its name and its line of help will do.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

import typer
from typer.core import TyperCommand, TyperGroup

from gpuyard.domain.errors import GpuyardError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "gpuyard.wings"


class Wing(Protocol):
    """What an entry point of the group names; importing it must be quick."""

    @property
    def name(self) -> str:
        """The word after `gpuyard`."""
        ...

    @property
    def help(self) -> str:
        """One line."""
        ...

    def commands(self) -> typer.Typer:
        """Its commands; whatever is slow to import is imported here or later."""
        ...


class WingCommand(TyperCommand):
    """Stands for a wing in the list of commands."""

    def __init__(self, wing: Wing) -> None:
        super().__init__(wing.name, help=wing.help)
        self._wing = wing

    def open(self) -> Any:
        """The wing's own commands, as one group."""
        group = cast(Any, typer.main.get_command(self._wing.commands()))
        group.name = self._wing.name
        return group


class CommandsWithWings(TyperGroup):
    """A group that knows the wings' names, after its own commands, and opens a wing when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Our names, then theirs."""
        own = super().list_commands(ctx)
        return own + [name for name in sorted(_wings()) if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of ours, or what stands for a wing; a wing cannot take the name of one of ours."""
        return super().get_command(ctx, cmd_name) or _wings().get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; if that is a wing, its group."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.open() if isinstance(command, WingCommand) else command, rest


@cache
def _wings() -> dict[str, WingCommand]:
    """The wings that are installed, by the word they are called by."""
    from importlib.metadata import entry_points

    found = (_load(point) for point in entry_points(group=GROUP))
    return {wing.name: WingCommand(wing) for wing in found}


def _load(point: "EntryPoint") -> Wing:
    try:
        return point.load()
    except Exception as error:  # noqa: BLE001  another package's fault must not take our commands along
        return _Broken(point.name, f"{type(error).__name__}: {error}")


class _Broken:
    """A wing that cannot be imported: it says so when it is called."""

    def __init__(self, name: str, fault: str) -> None:
        self.name, self.help, self._fault = name, "(cannot be loaded)", fault

    def commands(self) -> typer.Typer:
        raise GpuyardError(f"The wing {self.name} cannot be loaded: {self._fault}.", "Install its package anew.")
