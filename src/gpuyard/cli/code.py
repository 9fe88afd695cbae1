"""Stores the code of working folders before jobs are submitted, so that they run what
was there then.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from gpuyard.client.sync import Client


def with_code(client: "Client", bodies: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """`bodies`, each job that runs on this host with the code of its folder; and notes
    for people about folders whose code could not be stored.
    """
    from gpuyard.client.carrying import runs_on_this_host

    known: dict[str, str | None] = {}
    filled_in: list[Any] = []
    notes: list[str] = []
    for body in bodies:
        if not runs_on_this_host(client.address, body) or not _wants_code(body):
            filled_in.append(body)
            continue
        workdir = body["workdir"]
        if workdir not in known:
            known[workdir], why = _stored(client, workdir)
            if why:
                notes.append(f"the job runs the code as it is when it starts: {why}")
        digest = known[workdir]
        filled_in.append({**body, "submitted_code": digest} if digest else body)
    return filled_in, notes


def _wants_code(body: Mapping[str, Any]) -> bool:
    is_decided = body.get("live") or "submitted_code" in body
    return isinstance(body.get("workdir"), str) and not is_decided


def _stored(client: "Client", workdir: str) -> tuple[str | None, str]:
    """The digest of the stored code, or None, and perhaps why."""
    from gpuyard.client import calls
    from gpuyard.domain.errors import NotFoundError

    try:
        answer = client.call(calls.store_code(workdir))
    except NotFoundError:
        return None, ""  # a server of an older version
    return cast("str | None", answer["digest"]), answer["why"]
