"""`gpuyard verify status`, `evidence`, `receipt` and `check`: what came of verification, for us and for others."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.client.printing import print_json, print_table, say
from gpuyard.domain.errors import InvalidInputError, NotFoundError, UnreachableError, quoted
from gpuyard.verification.commands import FAILED, AsJson, app, extra_needed, seconds_of

if TYPE_CHECKING:
    from gpuyard.verification.evidence import Verdict
    from gpuyard.verification.records.executors import ExecutorRecord
    from gpuyard.verification.session import Store


@app.command()
@extra_needed
def status(
    as_json: AsJson = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="The same for Prometheus.")] = False,
) -> None:
    """Show samples by class, and how executors stand.

    Of each executor: its trust, its quarantine and its newest checks.
    """
    from gpuyard.verification.metrics import figures, render_metrics
    from gpuyard.verification.session import open_store

    if as_json and metrics:
        raise InvalidInputError.of("--metrics", "is no JSON", "leave out --json, or --metrics")
    store, database = open_store()
    try:
        if metrics:
            say(render_metrics(store.records)[0].decode().rstrip("\n"))
            return
        classes = [_class_row(store, one) for one in figures(store.records)]
        known = store.records.executors()
        quarantines = _quarantines(store, known) if known else {}
        executors = [_executor_row(store, record, quarantines[record.name]) for record in known]
    finally:
        database.close()
    if as_json:
        print_json({"classes": classes, "executors": executors})
        return
    _print_status(classes, executors)


def _class_row(store: "Store", one: Any) -> dict[str, Any]:
    from gpuyard.verification.classes import class_of

    return {
        "class": one.gpu_class, "executors": one.executors, "series": one.series, "used": one.used,
        "ready": one.ready, "waiting": one.waiting, "deadline_s": store.deadline_s(class_of(one.gpu_class)),
    }  # fmt: skip


def _quarantines(store: "Store", records: "Sequence[ExecutorRecord]") -> dict[str, float | None]:
    """Until when each executor's place is in quarantine, by what the yard says: a person may have ended it.

    Where no yard answers, by what verification wanted.
    """
    from gpuyard.client.sync import Client
    from gpuyard.verification.executors import place_of

    settings = store.settings.executors
    try:
        with Client() as yard:
            places = {one.place: one.quarantined_until for one in yard.trust()}
    except UnreachableError as error:
        sys.stderr.write(f"gpuyard: note: {error} Quarantines are shown as verification left them.\n")
        return {one.name: one.quarantined_until for one in records}
    return {one.name: places.get(place_of(settings[one.name]) if one.name in settings else one.name)
            for one in records}  # fmt: skip


def _executor_row(store: "Store", record: "ExecutorRecord", until: float | None) -> dict[str, Any]:
    import time

    from gpuyard.verification.standing import score

    now = time.time()
    checks = store.records.checks_by(record.name, 20)
    return {
        "name": record.name, "class": record.gpu_class, "trust": round(score(record, now), 3),
        "quarantined_until": until if until and until > now else None,
        "checks": [{key: check[key] for key in ("id", "created_at", "outcome", "solve_s", "reason")}
                   for check in checks],
    }  # fmt: skip


def _print_status(classes: Sequence[dict[str, Any]], executors: Sequence[dict[str, Any]]) -> None:
    if not classes:
        say("Nothing was verified yet: `gpuyard verify run EXECUTOR --class C` begins.")
        return
    columns = ("CLASS", "EXECUTORS", "SERIES", "USED", "READY", "WAITING", "DEADLINE S")
    print_table(columns, [tuple(one.values()) for one in classes])
    say()
    rows = [(one["name"], one["class"], one["trust"], _when(one["quarantined_until"]), _history(one["checks"]),
             one["checks"][0]["reason"] if one["checks"] else "") for one in executors]  # fmt: skip
    print_table(("EXECUTOR", "CLASS", "TRUST", "QUARANTINED UNTIL", "CHECKS", "THE NEWEST"), rows)


_SIGNS = {"passed": "+", "failed": "x", "excused": "b", "blameless": "."}


def _history(checks: Sequence[dict[str, Any]]) -> str:
    """The newest to the right."""
    return "".join(_SIGNS.get(check["outcome"] or "", "?") for check in reversed(checks))


def _when(moment: float | None) -> str | None:
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M") if moment else None
    except (ValueError, OverflowError, OSError):  # evidence that somebody made up
        return f"{moment:g} s"


@app.command()
@extra_needed
def evidence(
    check_id: Annotated[str, typer.Argument(metavar="CHECK", help="The id of a check.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the file here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show or write out the signed evidence of a check.

    Anybody can check the file with `gpuyard verify check`.
    """
    from gpuyard.verification import evidence as files
    from gpuyard.verification import keys
    from gpuyard.verification.session import open_store

    store, database = open_store()
    database.close()
    found = [path for path in store.evidence.glob("*.json") if path.stem == check_id or path.stem.endswith(check_id)]
    if len(found) != 1:
        raise NotFoundError(f"There is no evidence of a check {check_id!r}." if not found else
                            f"{check_id!r} could be {len(found)} checks.",
                            "`gpuyard verify status --json` lists their ids.")  # fmt: skip
    key = keys.public_hex(store.key())
    if output:
        _copy(found[0], output)
    _print_verdict(files.check(found[0], key), as_json, {"key": key, "file": str(output or found[0])})
    if not as_json:
        say(f"{output or found[0]}; who has it checks it with: gpuyard verify check FILE --key {key}")


def _copy(file: Path, output: Path) -> None:
    try:
        copyfile(file, output)
    except OSError as error:
        fault = f"{output} cannot be written: {error.strerror or error}"
        raise InvalidInputError.of("--output", fault, "name a file in a folder that is there") from None


@app.command()
@extra_needed
def receipt(
    name: Annotated[str, typer.Argument(metavar="EXECUTOR", help="One of the settings, by name.")],
    job: Annotated[str, typer.Argument(metavar="JOB", help="The work it is given, by any name.")],
    valid: Annotated[str, typer.Option("--for", metavar="TIME", help="For how long from now, such as 1h.")],
) -> None:
    """Sign a receipt for work that an executor is given.

    It excuses the executor once for declining a check; hand it over with the job.
    """
    import time

    from gpuyard.domain.ids import new_id
    from gpuyard.verification import receipts
    from gpuyard.verification.excusing import YARD
    from gpuyard.verification.executors import named
    from gpuyard.verification.session import open_store

    valid_s = seconds_of("--for", valid)
    if not 0 < valid_s <= receipts.LONGEST_S:
        remedy = f"give more than 0 and at most {receipts.LONGEST_S / 3600:g}h"
        raise InvalidInputError.of("--for", f"is {valid}", remedy)
    if not (0 < len(job) <= receipts.LONGEST_TEXT and job.isprintable()):
        remedy = f"give a name of 1 to {receipts.LONGEST_TEXT} printable characters"
        raise InvalidInputError.of("JOB", f"is {quoted(job)}", remedy)
    store, database = open_store()
    database.close()
    known = store.settings.executors
    if name not in known:
        remedy = f"name one of {', '.join(sorted(known))}" if known else "add [verification.executors.NAME]"
        raise InvalidInputError.of("EXECUTOR", f"{quoted(name)} is not in the settings", remedy)
    executor = named(name, known, None)
    wanted = receipts.Receipt(new_id("receipt"), name, job, executor.gpu_class.value, time.time(), valid_s, YARD)
    print_json(receipts.sign(wanted, store.key()))


@app.command()
@extra_needed
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `gpuyard verify evidence` wrote.")],
    key: Annotated[str | None, typer.Option(metavar="KEY", help="The yard's public key, hex or PEM.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check evidence without anybody's help. Exit code 1 when the file is not sound."""
    from gpuyard.verification import evidence as files

    verdict = files.check(file, key)
    _print_verdict(verdict, as_json, {})
    if not verdict.sound:
        raise typer.Exit(FAILED)


def _print_verdict(verdict: "Verdict", as_json: bool, more: dict[str, Any]) -> None:
    lines = [*verdict.about_file, *verdict.about_check]
    if as_json:
        told = [{"name": line.name, "ok": line.ok, "reason": line.reason} for line in lines]
        print_json({"check": verdict.check, "executor": verdict.executor, "class": verdict.gpu_class, "at": verdict.at,
                    "delivery": verdict.delivery, "outcome": verdict.outcome, "sound": verdict.sound, "lines": told,
                    **more})  # fmt: skip
        return
    say(f"{verdict.check}: {verdict.executor}, as {verdict.gpu_class}: {verdict.outcome}")
    if moment := _when(verdict.at):
        say(f"  at {moment} UTC, with the seed by {verdict.delivery}; it says nothing of other times")
    for line in lines:
        say(f"  {_MARKS[line.ok]:<8} {line.name:<14} {line.reason}")
    say("The file is sound." if verdict.sound else "The file is not sound: it proves nothing.")


_MARKS = {True: "ok", False: "not ok", None: "open"}
