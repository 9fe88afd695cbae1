"""What the command learns of verification before anyone asks for it: a name, a line of help, and where the rest is."""

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
        from gpuyard.verification.commands import app

        return app


wing = Wing("verify", "Prove that GPU executors are what they claim.")
