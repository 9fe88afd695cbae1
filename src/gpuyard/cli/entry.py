"""The entry point `gpuyard`: `gpuyard jobs` starts quickly, the rest through Typer."""

import os
import sys

from gpuyard.cli.broken_pipe import discard_output
from gpuyard.domain.errors import GpuyardError


def main() -> None:
    """Run the command; a known error is one line on stderr and its exit code."""
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
        discard_output()


if __name__ == "__main__":
    main()
