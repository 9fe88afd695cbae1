"""Commands that plugins bring along, found by the entry-point group `gpuyard.plugins`,
which packages of others may join.

A plugin is asked for its commands when one of them is meant. Until then its name and
its line of help will do.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

import typer
from typer.core import TyperCommand, TyperGroup

from gpuyard.domain.errors import GpuyardError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "gpuyard.plugins"


class CommandPlugin(Protocol):
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


class PluginCommand(TyperCommand):
    """Stands for a plugin in the list of commands."""

    def __init__(self, plugin: CommandPlugin) -> None:
        super().__init__(plugin.name, help=plugin.help)
        self._plugin = plugin

    def open(self) -> Any:
        """The plugin's own commands, as one group."""
        group = cast(Any, typer.main.get_command(self._plugin.commands()))
        group.name = self._plugin.name
        return group


class CommandsWithPlugins(TyperGroup):
    """A group that knows the plugins' names, after its own commands, and opens a plugin
    when it is called.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Our names, then theirs."""
        own = super().list_commands(ctx)
        return own + [name for name in sorted(_plugins()) if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of ours, or what stands for a plugin; a plugin cannot take the name of
        one of ours.
        """
        return super().get_command(ctx, cmd_name) or _plugins().get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; if that is a plugin, its group."""
        name, command, rest = super().resolve_command(ctx, args)
        return (
            name,
            command.open() if isinstance(command, PluginCommand) else command,
            rest,
        )


@cache
def _plugins() -> dict[str, PluginCommand]:
    """The plugins that are installed, by the word they are called by."""
    from importlib.metadata import entry_points

    found = (_load(point) for point in entry_points(group=GROUP))
    return {plugin.name: PluginCommand(plugin) for plugin in found}


def _load(point: "EntryPoint") -> CommandPlugin:
    try:
        return point.load()
    except Exception as error:  # noqa: BLE001  another package's fault must not take our commands along
        return _Broken(point.name, f"{type(error).__name__}: {error}")


class _Broken:
    """A plugin that cannot be imported: it says so when it is called."""

    def __init__(self, name: str, fault: str) -> None:
        self.name = name
        self.help = "(cannot be loaded)"
        self._fault = fault

    def commands(self) -> typer.Typer:
        raise GpuyardError(
            f"The plugin {self.name} cannot be loaded: {self._fault}.",
            "Install its package anew.",
        )
