"""`gpuyard llm`: ask a model something; the answer is printed as it comes."""

import sys
from typing import Annotated

import typer

from gpuyard.cli import suggest
from gpuyard.cli.output import print_json, say
from gpuyard.cli.session import connect


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
    as_json: Annotated[
        bool, typer.Option("--json", help="The whole answer as one JSON document.")
    ] = False,
) -> None:
    """Ask MODEL something.

    It is loaded if it is not; any OpenAI client can do the same.
    """
    from gpuyard.client import calls

    text = " ".join(prompt) if prompt else sys.stdin.read()
    body = calls.chat_body(model, text, max_tokens)
    with connect() as client:
        if as_json:
            print_json(client.ask(body))
            return
        for piece in client.chat(body):
            sys.stdout.write(piece)
            sys.stdout.flush()
    say("")
