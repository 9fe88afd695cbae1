"""`gpuyard verify`: run, watch, prompts and status.

`commands_evidence` adds the commands about signed files, and `commands_calibrate` the
one that measures a class.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpuyard.client.extras import needs_extra
from gpuyard.client.printing import print_json, print_table, say
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    UnreachableError,
)
from gpuyard.verification.plugin import plugin
from gpuyard.verification.run_report import exit_code_of, print_report

if TYPE_CHECKING:
    from gpuyard.verification.classes import Class
    from gpuyard.verification.executors import Executor
    from gpuyard.verification.records.executors import ExecutorRecord
    from gpuyard.verification.session import Session, VerificationStore
    from gpuyard.verification.verify import VerificationReport

T = TypeVar("T")
Names = Annotated[
    list[str],
    typer.Argument(
        metavar="EXECUTOR…",
        help="Names of the settings, providers, gpu:UUID, or node:NAME for its GPUs.",
    ),
]
NamesOrNone = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[EXECUTOR…]", help="As for `run`; none: the watches of the settings."
    ),
]
OfClass = Annotated[
    str,
    typer.Option("--class", metavar="C", help="The class they claim, such as a6000."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Claims = Annotated[
    list[str] | None,
    typer.Option(
        "--claim",
        metavar="CLAIM",
        help="Ask for inventory, vram, speed or all, too; repeat for several.",
    ),
]
_MOST_OFTEN_S = 1.0

extra_needed = needs_extra("verify", "verification")
app = plugin.new_app()


@app.command()
@extra_needed
def run(
    names: Names,
    of_class: OfClass = "",
    claim: Claims = None,
    allow_unjudged: Annotated[
        bool,
        typer.Option(
            "--allow-unjudged", help="Exit with 0 though a check was not judged."
        ),
    ] = False,
    every_prompt: Annotated[
        bool,
        typer.Option(
            "--every-prompt", help="Compare all answers, and not one of each series."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify executors once, all at the same moment.

    Exit code 1 when one of them fails, or could not be judged; 4 when a class could not
    be verified, because its trusted executor has changed.
    """
    from gpuyard.verification.claims import claims_of
    from gpuyard.verification.verify import verify

    claims = claims_of(claim or [])

    async def once(session: "Session") -> "VerificationReport":
        return await verify(
            session,
            await executors_named(session, names, of_class),
            claims=claims,
            say=quiet(as_json),
            every_prompt=every_prompt,
        )

    report = in_session(once)
    print_report(report, as_json)
    if code := exit_code_of(report, allow_unjudged=allow_unjudged):
        raise typer.Exit(code)


@app.command()
@extra_needed
def watch(
    names: NamesOrNone = None,
    of_class: OfClass = "",
    every: Annotated[
        str, typer.Option(metavar="TIME", help="How often, such as 30m.")
    ] = "30m",
    claim: Claims = None,
    until_input_ends: Annotated[
        bool, typer.Option("--until-input-ends", hidden=True)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document a line for each batch.")
    ] = False,
) -> None:
    """Verify executors again and again between their jobs.

    Samples are made meanwhile; Ctrl-C ends it. Without names it does what the settings
    say in `[verification.watches.NAME]`, which the server does by itself.
    """
    from gpuyard.verification.claims import claims_of
    from gpuyard.verification.verify import watch as go_on
    from gpuyard.verification.watches import keep_watches, watches_of

    claims = claims_of(claim or [])
    every_s = _interval_of(every)

    async def again(session: "Session") -> None:
        say = quiet(as_json)
        if not names:
            watches = watches_of(session)
            attached = until_input_ends
            await keep_watches(session, watches, say, tell, attached=attached)
            return
        executors = await executors_named(session, names, of_class)
        await go_on(session, executors, every_s, claims=claims, say=say, tell=tell)

    def tell(report: "VerificationReport") -> None:
        print_report(report, as_json)

    with suppress(KeyboardInterrupt):
        in_session(again)


def _interval_of(words: str) -> float:
    every_s = seconds_of("--every", words)
    if every_s < _MOST_OFTEN_S:
        raise InvalidInputError.of(
            "--every",
            f"is {words}, too often for a check",
            f"write {_MOST_OFTEN_S:g}s or more",
        )
    return every_s


@app.command()
@extra_needed
def prompts(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="Prompts in UTF-8, one a line."),
    ],
    of_class: Annotated[
        str,
        typer.Option("--class", metavar="C", help="The class that will be asked them."),
    ],
    as_json: AsJson = False,
) -> None:
    """Add prompts of your own.

    Each file is a series, with as many prompts as the class has in one.
    """
    from gpuyard.verification.context import Context
    from gpuyard.verification.prompts import add_files
    from gpuyard.verification.session import open_store

    cls = class_named(of_class)
    store, database = open_store()
    try:
        context = Context(store.records, store.blobs, lambda _: None, store.settings)
        added = asyncio.run(add_files(context, cls, files))
    except OSError as error:
        raise GpuyardError(
            f"The prompts cannot be stored: {error}.", "Nothing was added."
        ) from error
    finally:
        database.close()
    if as_json:
        print_json(
            {"class": of_class, "series": added.series, "left_out": added.left_out}
        )
        return
    say(f"{added.series} series added to {of_class}.")
    if added.left_out:
        say(
            f"{added.left_out} left out: there already, or no room ([verification]"
            " max_series)."
        )


async def executors_named(
    session: "Session", names: Sequence[str], of_class: str
) -> "list[Executor]":
    from gpuyard.client import calls
    from gpuyard.verification.executors import executor_named
    from gpuyard.verification.nodes import NODE, executors_of_node

    cls = class_named(of_class) if of_class else None
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InvalidInputError.of(
            "EXECUTOR", f"names {', '.join(sorted(twice))} twice", "name each once"
        )
    configured = session.store.settings.executors
    found: dict[str, Executor] = {}
    for name in names:
        if name.startswith(NODE) and name not in configured:
            gpus = await session.client.call(calls.listing("gpus"))
            named = executors_of_node(name, gpus, configured, cls)
        else:
            named = [executor_named(name, configured, cls)]
        found.update({executor.name: executor for executor in named})
    return list(found.values())


def class_named(name: str) -> "Class":
    from gpuyard.verification.classes import class_of

    try:
        return class_of(name)
    except ValueError as error:
        raise InvalidInputError.of("--class", str(error), "name one of them") from None


def seconds_of(option: str, words: str) -> float:
    """Parse a time such as 30m into seconds; InvalidInputError names the option."""
    from gpuyard.domain import units

    try:
        return float(units.seconds(words))
    except ValueError as error:
        fault, _, remedy = str(error).rpartition("; ")
        raise InvalidInputError.of(option, fault, remedy) from None


def quiet(as_json: bool) -> Callable[[str], None]:
    return (lambda _: None) if as_json else say


def report_unless_late(
    loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Report what went wrong in a callback, but not that a Unix socket was said to be
    ready twice: anyio waits for it with a callback that uvloop may call again before it
    is removed, and the second call changes nothing.
    """
    is_late = isinstance(context.get("exception"), asyncio.InvalidStateError)
    if not is_late or "set_result" not in repr(context.get("handle")):
        loop.default_exception_handler(context)


def in_session(work: "Callable[[Session], Coroutine[Any, Any, T]]") -> T:
    import uvloop

    from gpuyard.config.logs import configure_logging
    from gpuyard.verification.session import open_session

    configure_logging()

    async def inside() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report_unless_late)
        # It ends its jobs and lets go of its locks, as after Ctrl-C.
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        async with open_session() as session:
            return await work(session)

    # On uvloop a solver's connection takes less memory than on asyncio's own loop.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(inside())
        except asyncio.CancelledError:
            raise typer.Exit(128 + signal.SIGTERM) from None


@app.command()
@extra_needed
def status(
    as_json: AsJson = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="The same for Prometheus.")
    ] = False,
) -> None:
    """Show the samples of each class, and each executor.

    Of each executor: its trust, its quarantine and its newest checks.
    """
    from gpuyard.verification.executors import judging_executors
    from gpuyard.verification.metrics import figures, render_metrics
    from gpuyard.verification.session import open_store

    if as_json and metrics:
        raise InvalidInputError.of(
            "--metrics", "is no JSON", "leave out --json, or --metrics"
        )
    store, database = open_store()
    try:
        if metrics:
            say(render_metrics(store.records)[0].decode().rstrip("\n"))
            return
        judges = judging_executors(store.settings)
        classes = [_class_row(store, one, judges) for one in figures(store.records)]
        known = store.records.executors()
        quarantines = _quarantines(store, known) if known else {}
        executors = [
            _executor_row(store, record, quarantines[record.name]) for record in known
        ]
    finally:
        database.close()
    if as_json:
        print_json({"classes": classes, "executors": executors})
        return
    print_status(classes, executors)


def _class_row(
    store: "VerificationStore", one: Any, judges: "Mapping[Class, Executor]"
) -> dict[str, Any]:
    from gpuyard.verification.classes import class_of
    from gpuyard.verification.trusted_changes import change_of, silence_of

    cls = class_of(one.gpu_class)
    judge = judges.get(cls)
    return {
        "class": one.gpu_class,
        "executors": one.executors,
        "series": one.series,
        "used": one.used,
        "ready": one.ready,
        "waiting": one.waiting,
        "deadline_s": store.deadline_s(cls),
        "changed": change_of(store.records, cls, judge) or None,
        "silent": (judge and silence_of(store.records, cls, judge.name)) or None,
    }


def _quarantines(
    store: "VerificationStore", records: "Sequence[ExecutorRecord]"
) -> dict[str, float | None]:
    """Until when the place of each executor is in quarantine.

    The instance knows it, because a person may have ended a quarantine. If the instance
    does not answer, the last value of verification is used.
    """
    from gpuyard.client.sync import Client
    from gpuyard.verification.executors import place_of

    settings = store.settings.executors
    try:
        with Client() as instance:
            places = {one.place: one.quarantined_until for one in instance.trust()}
    except UnreachableError as error:
        sys.stderr.write(
            f"gpuyard: note: {error} Quarantines are shown as verification left them.\n"
        )
        return {one.name: one.quarantined_until for one in records}
    configured = {name: place_of(executor) for name, executor in settings.items()}
    return {one.name: places.get(configured.get(one.name, one.name)) for one in records}


def _executor_row(
    store: "VerificationStore", record: "ExecutorRecord", until: float | None
) -> dict[str, Any]:
    import time

    from gpuyard.verification.trust import score

    now = time.time()
    checks = store.records.checks_by(record.name, 20)
    return {
        "name": record.name,
        "class": record.gpu_class,
        "trust": round(score(record, now), 3),
        "quarantined_until": until if until and until > now else None,
        "checks": [
            {
                key: check[key]
                for key in ("id", "created_at", "outcome", "solve_s", "reason")
            }
            for check in checks
        ],
    }


def print_status(
    classes: Sequence[dict[str, Any]], executors: Sequence[dict[str, Any]]
) -> None:
    """Print the rows of `status`: what there is of each class, and each executor."""
    if not classes:
        say("Nothing was verified yet: `gpuyard verify run EXECUTOR --class C` begins.")
        return
    columns = ("CLASS", "EXECUTORS", "SERIES", "USED", "READY", "WAITING", "DEADLINE S")
    print_table(columns, [tuple(one.values())[: len(columns)] for one in classes])
    for one in classes:
        for trouble in filter(None, (one["changed"], one["silent"])):
            say(trouble)
    say()
    rows = [
        (
            one["name"],
            one["class"],
            one["trust"],
            utc_minute(one["quarantined_until"]),
            _history(one["checks"]),
            one["checks"][0]["reason"] if one["checks"] else "",
        )
        for one in executors
    ]
    print_table(
        ("EXECUTOR", "CLASS", "TRUST", "QUARANTINED UNTIL", "CHECKS", "THE NEWEST"),
        rows,
    )


_SIGNS = {
    "passed": "+",
    "failed": "x",
    "excused": "b",
    "blameless": ".",
    "waited": "w",
    "unjudged": "?",
    "unexplained": "!",
    "other_engine": "v",
}


def _history(checks: Sequence[dict[str, Any]]) -> str:
    """The outcomes of checks as signs, the newest to the right."""
    return "".join(
        _SIGNS.get(check["outcome"] or "", "?") for check in reversed(checks)
    )


def utc_minute(moment: float | None) -> str | None:
    """A time in UTC, to the minute; None for none."""
    if not moment:
        return None
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):  # forged evidence
        return f"{moment:g} s"
