"""`gpuyard gpus, tiers, providers, offers, workspace`: what there is to run on, at what
price, and to keep.
"""

from typing import Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.dashboard import disk_problems
from gpuyard.cli.output import ago, clock, print_page, print_table, short_id, size
from gpuyard.cli.session import connect
from gpuyard.domain.units import format_duration, format_gb

DrainOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drain",
        metavar="GPU",
        help="Give it nothing new.",
        autocompletion=suggest.gpus,
    ),
]
UndrainOption = Annotated[
    list[str] | None,
    typer.Option(
        "--undrain",
        metavar="GPU",
        help="Use it again.",
        autocompletion=suggest.gpus,
    ),
]
ReleaseOption = Annotated[
    list[str] | None,
    typer.Option(
        "--release",
        metavar="GPU",
        help="End its quarantine.",
        autocompletion=suggest.gpus,
    ),
]
_GPU_COLUMNS = (
    "GPU",
    "NAME",
    "CLASS",
    "MEMORY",
    "FREE",
    "TEMP",
    "LOAD",
    "STATE",
    "NODE",
    "JOB",
    "PROBLEM",
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (gpus, tiers, providers, offers, workspace):
        app.command()(command)


def _listing(noun: str) -> list[dict[str, Any]]:
    from gpuyard.client import calls

    with connect() as client:
        return client.call(calls.listing(noun))


def gpus(
    drain: DrainOption = None,
    undrain: UndrainOption = None,
    release: ReleaseOption = None,
    as_json: AsJson = False,
) -> None:
    """List the GPUs, their state and the job on each.

    GPU: an index, a UUID or the beginning of one.
    """
    _tend(drain=drain or [], undrain=undrain or [], release=release or [])
    found = _listing("gpus")
    if as_json:
        print_page(found)
        return
    empty = (
        "No GPUs found on this machine; CPU jobs run. `gpuyard doctor` says what was"
        " tried."
    )
    print_table(_GPU_COLUMNS, map(_gpu_row, found), empty=empty)
    for problem in disk_problems(_listing("nodes")):
        typer.echo(problem)
    by_agreement = {gpu["node"] for gpu in found if gpu["separation"] == "agreement"}
    if by_agreement:
        typer.echo(
            f"Jobs on {', '.join(sorted(by_agreement))} are kept apart by agreement"
            " only: each could use every GPU there, and read the others' files."
        )


def _gpu_row(gpu: dict[str, Any]) -> tuple[Any, ...]:
    """The line of a GPU in the table."""
    warnings = "; ".join(gpu.get("warnings", ()))
    return (
        gpu["index"],
        gpu["name"],
        gpu["gpu_class"],
        format_gb(gpu["memory_mb"] / 1024),
        _figure(gpu["free_mb"], "GB"),
        _figure(gpu["temperature_c"], "°C"),
        _figure(gpu["utilization"], "%"),
        gpu["state"],
        gpu["node"],
        short_id(gpu["job_id"] or ""),
        gpu["problem"] or gpu["quarantine"] or warnings,
    )


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "GB":
        return format_gb(value / 1024)
    if unit == "%":
        return f"{value:.0%}"
    return f"{value:g} {unit}"


def _tend(**wishes: list[str]) -> None:
    from gpuyard.client import calls

    for action, wanted in wishes.items():
        for gpu in wanted:
            with connect() as client:
                client.call(calls.tend_gpu(gpu, action))


def tiers(as_json: AsJson = False) -> None:
    """List the named sizes and their prices."""
    found = _listing("tiers")
    if as_json:
        print_page(found)
        return
    gpus = {
        tier["id"]: f"{tier['gpu']['count']} × {tier['gpu']['memory']}"
        for tier in found
        if tier.get("gpu")
    }
    rows = [
        (
            tier["id"],
            f"{tier['cpu']:g}",
            tier["memory"],
            gpus.get(tier["id"]),
            format_duration(tier["maxRuntime"]),
            f"${tier['costPerHour']:g}",
            tier["instance"],
            tier["description"],
        )
        for tier in found
    ]
    columns = ("TIER", "CPU", "MEMORY", "GPU", "MAX TIME", "PER HOUR", "SUCH AS", "FOR")
    print_table(columns, rows, empty="No tiers.")
    if found:
        typer.echo(
            f"Prices of {found[0]['date']}; override them with [[tiers]] in"
            " gpuyard.toml."
        )


def providers(as_json: AsJson = False) -> None:
    """List the providers and their health."""
    found = _listing("providers")
    if as_json:
        print_page(found)
        return
    rows = [
        (
            provider["name"],
            provider["status"],
            provider.get("nodes"),
            provider["running"],
            provider["waiting"],
            _percent(provider["success_rate_day"]),
            provider.get("message") or provider["quarantine"],
        )
        for provider in found
    ]
    columns = (
        "PROVIDER",
        "STATUS",
        "NODES",
        "RUNNING",
        "WAITING",
        "WENT WELL",
        "MESSAGE",
    )
    print_table(columns, rows, empty="No providers.")


def offers(as_json: AsJson = False) -> None:
    """List what providers offer beyond this machine, the best first.

    `gpuyard estimate` ranks them for a job.
    """
    found = _listing("offers")
    if as_json:
        print_page(found)
        return
    columns = (
        "OFFER",
        "GPUS",
        "EACH",
        "CORES",
        "MEMORY",
        "NODES",
        "PER HOUR",
        "KIND",
        "REGION",
        "WAIT",
        "TRUST",
        "NOTE",
    )
    problems = _problems_of_queues()
    empty = "No offers."
    if not problems:
        empty = "No offers: no external queue such as Slurm is configured."
    print_table(columns, map(_offer_row, found), empty=empty)
    for name, problem in problems.items():
        typer.echo(f"{name} {problem}")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _offer_row(offer: dict[str, Any]) -> tuple[Any, ...]:
    price = offer["price_per_hour"]
    return (
        offer["id"],
        f"{offer['gpus']} × {offer['gpu'] or 'GPU'}" if offer["gpus"] else None,
        f"{offer['gpu_memory_gb']:g} GB" if offer["gpu_memory_gb"] else None,
        f"{offer['cpus']:g}",
        f"{offer['memory_gb']:.4g} GB",
        offer["nodes"],
        price and f"{price} {offer['currency']}",
        "spot" if offer["spot"] else "",
        offer["region"],
        "" if offer["wait_s"] is None else format_duration(offer["wait_s"]),
        _percent(offer["trust"]),
        offer["problem"],
    )


def _problems_of_queues() -> dict[str, str]:
    from gpuyard.client import calls

    with connect() as client:
        return client.call(calls.offer_problems())


def _day(at: float | None) -> str:
    """A day, in local time."""
    return clock(at).partition(" ")[0]


def workspace(as_json: AsJson = False) -> None:
    """List the workspaces: folders that outlive the jobs that use them (`gpuyard run
    --workspace NAME`).
    """
    found = _listing("workspaces")
    if as_json:
        print_page(found)
        return
    rows = [
        (
            folder["project"],
            folder["name"],
            folder["files"],
            size(folder["size"]),
            ago(folder["used_at"]),
            _day(folder["removed_at"]),
            folder["path"],
        )
        for folder in found
    ]
    columns = ("PROJECT", "NAME", "FILES", "SIZE", "USED", "REMOVED ON", "PATH")
    print_table(
        columns, rows, empty="No workspaces. `gpuyard run --workspace NAME` makes one."
    )
