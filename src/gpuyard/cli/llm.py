"""`gpuyard llm`: ask a model something; the answer is printed as it comes."""

import json
import sys
from typing import Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.output import say
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(llm)


def llm(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name of `gpuyard models`.",
            autocompletion=suggest.models,
        ),
    ],
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT…", help="Default: standard input."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="At most so many tokens.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=5,
            help="1 to 5; 5 is urgent, 4 the default: whom to answer first.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="The whole answer, or the error, as one line of JSON."
        ),
    ] = False,
) -> None:
    """Ask MODEL something.

    It is loaded if it is not; any OpenAI client can do the same.
    """
    from gpuyard.client import calls

    text = " ".join(prompt) if prompt else sys.stdin.read()
    body = calls.chat_body(model, text, max_tokens)
    if as_json:
        sys.exit(_ask(body, priority))
    with connect() as client:
        for piece in client.chat(body, priority=priority):
            sys.stdout.write(piece)
            sys.stdout.flush()
    say("")


def _ask(body: dict[str, Any], priority: int | None) -> int:
    """Print the answer in OpenAI's form, or the error in the same form; the exit
    code.
    """
    try:
        with connect() as client:
            say(json.dumps(client.ask(body, priority=priority)))
    except GpuyardError as error:
        say(json.dumps({"error": {"code": error.code, "message": str(error)}}))
        return error.exit_code
    return 0
