"""`gpuyard verify`: run, watch, calibrate, prompts. What looks at what came of it is added to `app`."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpuyard.client.extras import needs_extra
from gpuyard.client.printing import print_json, print_table, say
from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.verification.wing import wing

if TYPE_CHECKING:
    from gpuyard.verification.classes import Class
    from gpuyard.verification.executors import Executor
    from gpuyard.verification.running import Report
    from gpuyard.verification.session import Session

T = TypeVar("T")
Names = Annotated[list[str], typer.Argument(metavar="EXECUTOR…", help="Names of the settings, providers, or gpu:UUID.")]
OfClass = Annotated[str, typer.Option("--class", metavar="C", help="The class they claim, such as a6000.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Claims = Annotated[
    list[str] | None,
    typer.Option("--claim", metavar="CLAIM", help="Ask for inventory, vram, speed or all, too; repeat for several."),
]
FAILED = 1
"""The exit code where an executor failed, or evidence is not sound."""
_MOST_OFTEN_S = 1.0

extra_needed = needs_extra("verify", "verification")
app = wing.new_app()


@app.command()
@extra_needed
def run(names: Names, of_class: OfClass = "", claim: Claims = None, as_json: AsJson = False) -> None:
    """Verify executors once, all at the same moment. Exit code 1 when one of them fails."""
    from gpuyard.verification.claims import claims_of
    from gpuyard.verification.running import verify

    claims = claims_of(claim or [])

    async def once(session: "Session") -> "Report":
        return await verify(session, _executors(session, names, of_class), claims=claims, say=_quiet(as_json))

    report = _in_session(once)
    _print_report(report, as_json)
    if any(check.outcome == "failed" for check in report.checks):
        raise typer.Exit(FAILED)


@app.command()
@extra_needed
def watch(
    names: Names,
    of_class: OfClass = "",
    every: Annotated[str, typer.Option(metavar="TIME", help="How often, such as 30m.")] = "30m",
    claim: Claims = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line for each batch.")] = False,
) -> None:
    """Verify executors again and again between their jobs.

    Samples are made meanwhile; Ctrl-C ends it.
    """
    from gpuyard.verification.claims import claims_of
    from gpuyard.verification.watching import watch as go_on

    claims = claims_of(claim or [])
    every_s = seconds_of("--every", every)
    if every_s < _MOST_OFTEN_S:
        raise InvalidInputError.of("--every", f"is {every}, too often for a check", f"write {_MOST_OFTEN_S:g}s or more")

    async def again(session: "Session") -> None:
        executors = _executors(session, names, of_class)
        await go_on(session, executors, every_s, claims=claims, say=_quiet(as_json),
                    tell=lambda report: _print_report(report, as_json))  # fmt: skip

    with suppress(KeyboardInterrupt):
        _in_session(again)


@app.command()
@extra_needed
def calibrate(
    of_class: Annotated[str, typer.Option("--class", metavar="C", help="The class.")],
    trusted: Annotated[str, typer.Option(metavar="EXECUTOR", help="Its trusted executor.")],
    runs: Annotated[int, typer.Option(min=5, help="How many series it solves.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Measure a class's trusted executor.

    The class's deadline becomes its 95th percentile × 1.2, its figures the ranges.
    """
    from gpuyard.verification.running import calibrate_class

    async def measure(session: "Session") -> Any:
        executor = _executors(session, [trusted], of_class)[0]
        return await calibrate_class(session, executor, runs, _quiet(as_json))

    found = _in_session(measure)
    ranges = {name: [one.low, one.high] for name, one in found.ranges.items()}
    if as_json:
        print_json({"class": of_class, "deadline_s": found.deadline_s, "claims_s": found.claims_s, "ranges": ranges})
        return
    say(f"{of_class} has {found.deadline_s:.2f} s from the seed to the answers' hash.")
    if found.claims_s:
        say(f"It has {found.claims_s:.2f} s from there to its claims.")
    for name, (low, high) in ranges.items():
        say(f"{name}: {low:.4g} to {high:.4g}")


@app.command()
@extra_needed
def prompts(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Prompts in UTF-8, one a line.")],
    of_class: Annotated[str, typer.Option("--class", metavar="C", help="The class that will be asked them.")],
    as_json: AsJson = False,
) -> None:
    """Add prompts of your own.

    Each file is a series, with as many prompts as the class has in one.
    """
    from gpuyard.verification.context import Context
    from gpuyard.verification.own_prompts import add_files
    from gpuyard.verification.session import open_store

    cls = _class_of(of_class)
    store, database = open_store()
    try:
        context = Context(store.records, store.blobs, lambda _: None, store.settings)
        added = asyncio.run(add_files(context, cls, files))
    except OSError as error:
        raise GpuyardError(f"The prompts cannot be stored: {error}.", "Nothing was added.") from error
    finally:
        database.close()
    if as_json:
        print_json({"class": of_class, "series": added.series, "left_out": added.left_out})
        return
    say(f"{added.series} series added to {of_class}.")
    if added.left_out:
        say(f"{added.left_out} left out: there already, or no room ([verification] max_series).")


def _print_report(report: "Report", as_json: bool) -> None:
    import time

    from gpuyard.verification.standing import score

    now = time.time()
    trust = {name: round(score(record, now), 3) for name, record in report.standing.items()}
    items: list[dict[str, Any]] = [
        {"check": check.id, "executor": check.executor.name, "class": check.executor.gpu_class.value,
         "outcome": check.outcome.value, "solve_s": check.solve_s, "reason": check.reason,
         "trust": trust.get(check.executor.name)}
        for check in report.checks
    ]  # fmt: skip
    if as_json:
        print_json({"items": items, "left_out": report.left_out, "faults": report.faults, "next": None})
        return
    columns = ("EXECUTOR", "CLASS", "OUTCOME", "SECONDS", "TRUST", "CHECK", "WHY")
    rows = [(one["executor"], one["class"], one["outcome"], one["solve_s"] and round(one["solve_s"], 2), one["trust"],
             one["check"][-8:], one["reason"]) for one in items]  # fmt: skip
    print_table(columns, rows)
    if report.left_out:
        say(f"Without a sample that can be read, so not verified: {', '.join(report.left_out)}")
    for fault in report.faults:
        say(fault)


def _executors(session: "Session", names: Sequence[str], of_class: str) -> "list[Executor]":
    from gpuyard.verification.executors import named

    cls = _class_of(of_class) if of_class else None
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InvalidInputError.of("EXECUTOR", f"names {', '.join(sorted(twice))} twice", "name each once")
    return [named(name, session.store.settings.executors, cls) for name in names]


def _class_of(name: str) -> "Class":
    from gpuyard.verification.classes import class_of

    try:
        return class_of(name)
    except ValueError as error:
        raise InvalidInputError.of("--class", str(error), "name one of them") from None


def seconds_of(option: str, words: str) -> float:
    """A time that a person wrote, such as 30m, in seconds; InvalidInputError names the option."""
    from gpuyard.domain import units

    try:
        return float(units.seconds(words))
    except ValueError as error:
        fault, _, remedy = str(error).rpartition("; ")
        raise InvalidInputError.of(option, fault, remedy) from None


def _quiet(as_json: bool) -> Callable[[str], None]:
    return (lambda _: None) if as_json else say


def _in_session(work: "Callable[[Session], Coroutine[Any, Any, T]]") -> T:
    import uvloop

    from gpuyard.config.logs import configure_logging
    from gpuyard.verification.session import open_session

    configure_logging()

    async def inside() -> T:
        async with open_session() as session:
            return await work(session)

    # On uvloop a connection of a solver costs a quarter of what it costs on asyncio's own loop.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(inside())
