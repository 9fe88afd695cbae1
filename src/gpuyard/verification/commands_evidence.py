"""`gpuyard verify evidence`, `receipt` and `check`: signed files, ours and others'."""

from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.client.printing import print_json, say
from gpuyard.domain.errors import InvalidInputError, NotFoundError, quoted
from gpuyard.verification.commands import (
    AsJson,
    app,
    extra_needed,
    seconds_of,
    utc_minute,
)
from gpuyard.verification.run_report import FAILED

if TYPE_CHECKING:
    from gpuyard.verification.evidence import CheckedEvidence


@app.command()
@extra_needed
def evidence(
    check_id: Annotated[
        str, typer.Argument(metavar="CHECK", help="The id of a check.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the file here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show or write out the signed evidence of a check.

    Anyone can check the file with `gpuyard verify check`.
    """
    from gpuyard.verification import evidence as files
    from gpuyard.verification import keys
    from gpuyard.verification.session import open_store

    store, database = open_store()
    database.close()
    found = [
        path
        for path in store.evidence.glob("*.json")
        if path.stem == check_id or path.stem.endswith(check_id)
    ]
    if len(found) != 1:
        raise NotFoundError(
            (
                f"There is no evidence of a check {check_id!r}."
                if not found
                else f"{check_id!r} could be {len(found)} checks."
            ),
            "`gpuyard verify status --json` lists their ids.",
        )
    key = keys.public_hex(store.key())
    if output:
        _copy(found[0], output)
    _print_verdict(
        files.check_evidence(found[0], key),
        as_json,
        {"key": key, "file": str(output or found[0])},
    )
    if not as_json:
        say(
            f"{output or found[0]}; who has it checks it with: gpuyard verify check"
            f" FILE --key {key}"
        )


def _copy(file: Path, output: Path) -> None:
    try:
        copyfile(file, output)
    except OSError as error:
        fault = f"{output} cannot be written: {error.strerror or error}"
        raise InvalidInputError.of(
            "--output", fault, "name a file in a folder that is there"
        ) from None


@app.command()
@extra_needed
def receipt(
    name: Annotated[
        str, typer.Argument(metavar="EXECUTOR", help="One of the settings, by name.")
    ],
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="The work it is given, by any name.")
    ],
    valid: Annotated[
        str,
        typer.Option(
            "--for", metavar="TIME", help="For how long from now, such as 1h."
        ),
    ],
) -> None:
    """Sign a receipt for work that an executor is given.

    It excuses the executor once for declining a check. Hand it over with the job.
    """
    import time

    from gpuyard.domain.ids import new_id
    from gpuyard.verification import receipts
    from gpuyard.verification.check import INSTANCE
    from gpuyard.verification.executors import executor_named
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
        remedy = (
            f"name one of {', '.join(sorted(known))}"
            if known
            else "add [verification.executors.NAME]"
        )
        raise InvalidInputError.of(
            "EXECUTOR", f"{quoted(name)} is not in the settings", remedy
        )
    executor = executor_named(name, known, None)
    wanted = receipts.Receipt(
        new_id("receipt"),
        name,
        job,
        executor.gpu_class.value,
        time.time(),
        valid_s,
        INSTANCE,
    )
    print_json(receipts.sign(wanted, store.key()))


@app.command()
@extra_needed
def check(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="What `gpuyard verify evidence` wrote."),
    ],
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The instance's public key, hex or PEM."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check an evidence file. Exit code 1 when it is not sound."""
    from gpuyard.verification import evidence as files

    verdict = files.check_evidence(file, key)
    _print_verdict(verdict, as_json, {})
    if not verdict.sound:
        raise typer.Exit(FAILED)


def _print_verdict(
    verdict: "CheckedEvidence", as_json: bool, more: dict[str, Any]
) -> None:
    lines = [*verdict.about_file, *verdict.about_check]
    if as_json:
        told = [
            {"name": line.name, "ok": line.ok, "reason": line.reason} for line in lines
        ]
        print_json(
            {
                "check": verdict.check,
                "executor": verdict.executor,
                "class": verdict.gpu_class,
                "at": verdict.at,
                "delivery": verdict.delivery,
                "outcome": verdict.outcome,
                "sound": verdict.sound,
                "lines": told,
                **more,
            }
        )
        return
    say(
        f"{verdict.check}: {verdict.executor}, as {verdict.gpu_class}:"
        f" {verdict.outcome}"
    )
    if moment := utc_minute(verdict.at):
        say(
            f"  at {moment} UTC, with the seed by {verdict.delivery}; it says nothing"
            " of other times"
        )
    for line in lines:
        say(f"  {_MARKS[line.ok]:<8} {line.name:<14} {line.reason}")
    say(
        "The file is sound."
        if verdict.sound
        else "The file is not sound: it proves nothing."
    )


_MARKS = {True: "ok", False: "not ok", None: "open"}
