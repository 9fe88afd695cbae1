"""What the command learns of a plugin before anyone asks for it: a name, a line of
help, and where the rest is.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry of the group `gpuyard.plugins`.

    `module` holds its commands, as `app`, and is imported last.
    """

    name: str
    help: str
    module: str

    def commands(self) -> "typer.Typer":
        """The commands behind the name."""
        return import_module(self.module).app

    def new_app(self) -> "typer.Typer":
        """An empty group for them, which behaves as gpuyard's own commands do."""
        import typer

        return typer.Typer(
            help=self.help,
            rich_markup_mode=None,
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_enable=False,
        )
