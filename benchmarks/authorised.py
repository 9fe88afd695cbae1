"""What authorisation costs: a member of one of a hundred private projects beside the
owner of the instance, to whom everything exists.
"""

import json
from collections.abc import Iterator

from benchmarks.bench import Web, spec_body, timed
from benchmarks.figures import Figure, alternate, in_rounds
from gpuyard.client.connection import Address
from tests.support.instance import TestInstance

PROJECTS = 100
MOST = 1.05


def authorised(
    group: str, instance: TestInstance, web: Web, rounds: int, times: int
) -> Iterator[Figure]:
    """A page of the queue and a submission, as the one and as the other in turns."""
    member = Web(Address(instance.address().url, _member(web)))
    body = json.dumps(spec_body(0, distinct=False)).encode()
    for name, method, path, content in (
        ("GET /jobs?limit=1000", "GET", "/api/v1/jobs?limit=1000", None),
        ("a submission", "POST", "/api/v1/jobs", body),
    ):
        send = (method, path, content)
        for one in (member, web):
            one.send(*send)  # the first looks up what the others find
        values, floors = alternate(
            rounds * times,
            lambda s=send: timed(lambda: member.send(*s)) * 1000,
            lambda s=send: timed(lambda: web.send(*s)) * 1000,
        )
        yield Figure(
            group,
            f"{name} of a member, {PROJECTS} private projects, p50",
            in_rounds(values, rounds),
            "ms",
            MOST,
            in_rounds(floors, rounds),
            "the same of the owner",
        )
    member.close()


def _member(web: Web) -> str:
    """The token of a user who is in the first of the projects."""
    for number in range(PROJECTS):
        project = {"name": f"private-{number}", "private": True}
        web.send("POST", "/api/v1/projects", json.dumps(project).encode())
    web.send("POST", "/api/v1/users", b'{"name": "ana"}')
    web.send("PUT", "/api/v1/projects/private-0/members/ana", b"{}")
    issued = web.send("POST", "/api/v1/tokens", b'{"user": "ana"}')
    return str(json.loads(issued)["token"])
