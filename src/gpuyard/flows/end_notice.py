"""Tells of the end of a flow, once for all of its steps.

The instance tells addresses of the ends of jobs. So the end of a flow is a small job,
whose output says what became of each step, and which fails if one has failed.
"""

from collections.abc import Sequence
from uuid import uuid4

from gpuyard.client.bodies import at_home_here
from gpuyard.client.sync import Client
from gpuyard.domain.end_notices import NoticeAddress
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobs import Job
from gpuyard.flows.runner import FLOW_LABEL, PART_LABEL, StepEnd
from gpuyard.flows.spec import Flow

# It runs where the last step may run, and is seen by whoever sees that.
_SHARED = ("image", "provider", "provider_options", "allowed", "project")
_FAILS = ["sh", "-c", "cat; exit 1"]


def check_addresses(addresses: Sequence[str], field: str) -> None:
    """InvalidInputError, which names the field, for what is no address to tell."""
    for address in addresses:
        try:
            NoticeAddress.parse(address)
        except ValueError as error:
            fault, _, remedy = str(error).partition("; ")
            raise InvalidInputError.of(field, fault, remedy) from None


def tell_end(
    client: Client, flow: Flow, done: Sequence[StepEnd], addresses: Sequence[str]
) -> Job:
    """Tell these addresses of the end of a flow; the job that does it."""
    last = next(reversed(flow.steps.values())).job
    is_fine = all(one.is_fine for one in done)
    lines = [f"{one.step}: {one.state}\n" for one in done]
    body = at_home_here(
        {
            **{name: last[name] for name in _SHARED if name in last},
            "name": flow.name,
            "command": ["cat"] if is_fine else _FAILS,
            "stdin": "".join(lines),
            "resources": {"cpus": 0.1, "gpus": 0},
            "labels": {FLOW_LABEL: flow.name, PART_LABEL: "end"},
            "notify": list(addresses),
            "idempotency_key": f"flow-end:{uuid4().hex}",
        }
    )
    (job,) = client.submit([body])
    return job
