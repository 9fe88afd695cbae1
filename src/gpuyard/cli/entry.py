"""The entry point `gpuyard`: a plain listing at once, everything else through Typer."""

import os
import sys

from gpuyard.domain.errors import GpuyardError


def main() -> None:
    """The command; an error gpuyard can explain is one line on stderr and that error's exit code."""
    if sys.argv[1:2] == ["jobs"] and "_GPUYARD_COMPLETE" not in os.environ:
        from gpuyard.cli.listing import plain_options

        options = plain_options(sys.argv[2:])
        if options is not None:
            _list(options)
            return
    from gpuyard.cli.main import main as typed

    typed()


def _list(options: dict[str, object]) -> None:
    from gpuyard.cli.listing import list_jobs

    try:
        list_jobs(**options)  # pyright: ignore[reportArgumentType]
    except GpuyardError as error:
        sys.stderr.write(f"gpuyard: {error}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        leave_quietly()


def leave_quietly() -> None:
    """A reader that leaves (`| head`) has what it wanted.

    What is still in the buffer must go somewhere: Python would complain once more when it flushes at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
