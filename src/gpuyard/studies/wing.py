"""What the command learns of studies before anyone asks for them: a name, a line of help, and where the rest is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


@dataclass(frozen=True, slots=True)
class Wing:
    """An entry of the group `gpuyard.wings`. `commands` imports what `name` and `help` need not."""

    name: str
    help: str

    def commands(self) -> "typer.Typer":
        """The commands behind the name."""
        from gpuyard.studies.commands_run import app

        return app


wing = Wing("study", "Compare ways of splitting a large model over a cluster.")
