"""`gpuyard verify calibrate`: what a class is held to, from honest executors.

It is added after the commands about evidence, so this module has them all.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.client.printing import print_json, say
from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.commands import (
    AsJson,
    executors_named,
    extra_needed,
    in_session,
    quiet,
)
from gpuyard.verification.commands_evidence import app

if TYPE_CHECKING:
    from gpuyard.verification.session import Session


@app.command()
@extra_needed
def calibrate(
    of_class: Annotated[str, typer.Option("--class", metavar="C", help="The class.")],
    trusted: Annotated[
        str, typer.Option(metavar="EXECUTOR", help="Its trusted executor.")
    ] = "",
    against: Annotated[
        str,
        typer.Option(
            metavar="EXECUTOR",
            help="An honest executor of another version: measure how much it differs.",
        ),
    ] = "",
    runs: Annotated[int, typer.Option(min=5, help="How many series are solved.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Measure what a class is held to.

    With --trusted, its deadlines: the 95th percentiles × 1.2. With --against, the
    limits of its tolerance: the noise floor × 1.2, and for one answer × 1.5.
    """
    if bool(trusted) == bool(against):
        raise InvalidInputError.of(
            "--trusted",
            "and --against are different measurements",
            "give one of them",
        )
    if against:
        _tolerance(of_class, against, runs, as_json=as_json)
    else:
        _deadlines(of_class, trusted, runs, as_json=as_json)


def _deadlines(of_class: str, trusted: str, runs: int, *, as_json: bool) -> None:
    from gpuyard.verification.calibration import calibrate_class

    async def measure(session: "Session") -> Any:
        executor = (await executors_named(session, [trusted], of_class))[0]
        return await calibrate_class(session, executor, runs, quiet(as_json))

    found = in_session(measure)
    if as_json:
        print_json(
            {
                "class": of_class,
                "deadline_s": found.deadline_s,
                "claims_s": found.claims_s,
            }
        )
        return
    say(f"{of_class} has {found.deadline_s:.2f} s from the seed to the answers' hash.")
    if found.claims_s:
        say(f"It has {found.claims_s:.2f} s from there to its claims.")


def _tolerance(of_class: str, against: str, runs: int, *, as_json: bool) -> None:
    from gpuyard.verification.tolerance_calibration import calibrate_tolerance

    async def measure(session: "Session") -> Any:
        honest = (await executors_named(session, [against], of_class))[0]
        return await calibrate_tolerance(session, honest, runs, quiet(as_json))

    found = in_session(measure)
    if as_json:
        import msgspec

        print_json({"class": of_class, "limits": msgspec.structs.asdict(found)})
        return
    say(
        f"Of all tokens of {of_class}, {found.tokens_all:.2%} may be others than"
        f" sampling gives, and of one answer {found.tokens_one:.2%}."
    )
    say(
        f"Of the likeliest tokens, {found.ids_all:.2%} may be others"
        f" ({found.ids_one:.2%} of one answer); log-probabilities may differ by"
        f" {found.logprobs_all:.4f} ({found.logprobs_one:.4f})."
    )
