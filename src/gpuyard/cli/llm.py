"""`gpuyard llm`: ask a model something; the answer is printed as it comes."""

import json
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.output import say
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError

# What a model waits for is looked up so often (seconds).
_LOOK_S = 1.0


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
    from gpuyard.client import bodies

    text = " ".join(prompt) if prompt else sys.stdin.read()
    body = bodies.chat_body(model, text, max_tokens)
    if as_json:
        sys.exit(_ask(body, priority))
    with connect() as client, _telling_what_it_waits_for(model) as has_begun:
        for piece in client.chat(body, priority=priority):
            has_begun.set()
            sys.stdout.write(piece)
            sys.stdout.flush()
    say("")


def _ask(body: dict[str, Any], priority: int | None) -> int:
    """Print the answer in OpenAI's form, or the error in the same form; the exit
    code.
    """
    try:
        with connect() as client, _telling_what_it_waits_for(body["model"]):
            say(json.dumps(client.ask(body, priority=priority)))
    except GpuyardError as error:
        say(json.dumps({"error": {"code": error.code, "message": str(error)}}))
        return error.exit_code
    return 0


@contextmanager
def _telling_what_it_waits_for(model: str) -> Generator[threading.Event]:
    """Write on stderr what the model waits for, whenever that changes, until the
    answer has begun or the block ends.
    """
    has_begun = threading.Event()
    teller = threading.Thread(target=_tell, args=(model, has_begun), daemon=True)
    teller.start()
    try:
        yield has_begun
    finally:
        has_begun.set()


def _tell(model: str, has_begun: threading.Event) -> None:
    from gpuyard.client import calls

    told = ""
    while not has_begun.wait(_LOOK_S):
        # The request itself meets the same error, and tells it.
        with suppress(GpuyardError), connect(start=False) as client:
            models = client.call(calls.listing("models"))
            reason = next(
                (item["why_waiting"] for item in models if item["name"] == model), None
            )
            if reason and reason != told and not has_begun.is_set():
                sys.stderr.write(f"gpuyard: waiting: {reason}\n")
                sys.stderr.flush()
                told = reason
