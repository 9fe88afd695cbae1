"""The entry point `gpuyard`: `gpuyard jobs` starts quickly, the rest through Typer."""

import os
import sys

from gpuyard.cli.broken_pipe import discard_output
from gpuyard.domain.errors import GpuyardError, InvalidInputError, is_text


def main() -> None:
    """Run the command; a known error is one line on stderr and its exit code."""
    _open_closed_streams()
    _refuse_odd_arguments()
    if sys.argv[1:2] == ["__complete"]:
        from gpuyard.cli.completion import answer

        answer(sys.argv[2:])
        return
    if sys.argv[1:2] == ["jobs"] and "_GPUYARD_COMPLETE" not in os.environ:
        from gpuyard.cli.listing import plain_options

        options = plain_options(sys.argv[2:])
        if options is not None:
            _list(options)
            return
    from gpuyard.cli.main import main as typed

    typed()


def _open_closed_streams() -> None:
    """A shell may start a command with its output closed (`>&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  (to the end)


def _refuse_odd_arguments() -> None:
    for word in sys.argv[1:]:
        if not is_text(word):
            sys.stderr.write(f"gpuyard: the argument {word!r} is not UTF-8 text\n")
            sys.exit(InvalidInputError.exit_code)


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
