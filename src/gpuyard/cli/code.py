"""Stores the code of working folders before jobs are submitted, so that they run what
was there then.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import typer

if TYPE_CHECKING:
    from gpuyard.client.sync import Client


def with_code(client: "Client", bodies: Sequence[Any]) -> list[Any]:
    """`bodies`, each job that runs on this host with the code of its folder."""
    from gpuyard.client.carrying import runs_on_this_host

    known: dict[str, str | None] = {}
    filled_in: list[Any] = []
    for body in bodies:
        if not runs_on_this_host(client.address, body) or not _wants_code(body):
            filled_in.append(body)
            continue
        workdir = body["workdir"]
        if workdir not in known:
            known[workdir] = _stored(client, workdir)
        digest = known[workdir]
        filled_in.append({**body, "submitted_code": digest} if digest else body)
    return filled_in


def _wants_code(body: Mapping[str, Any]) -> bool:
    is_decided = body.get("live") or "submitted_code" in body
    return isinstance(body.get("workdir"), str) and not is_decided


def _stored(client: "Client", workdir: str) -> str | None:
    from gpuyard.client import calls
    from gpuyard.domain.errors import NotFoundError

    try:
        answer = client.call(calls.store_code(workdir))
    except NotFoundError:
        return None  # a server of an older version
    if answer["why"]:
        typer.echo(
            "gpuyard: note: the job will run the code as it is when it starts:"
            f" {answer['why']}",
            err=True,
        )
    return cast("str | None", answer["digest"])
