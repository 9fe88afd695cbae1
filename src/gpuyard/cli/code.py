"""Stores the code of working folders before jobs are submitted, so that they run what
was there then.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuyard.cli.run_names import with_run_names

if TYPE_CHECKING:
    from gpuyard.client.sync import Client


def with_code(client: "Client", bodies: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """`bodies`, each job that runs on this host with the code of its folder; and notes
    for people about folders whose code could not be stored.
    """
    named = [with_run_names(body, os.environ) for body in bodies]
    (filled_in, problems) = client.storing_code(named)
    notes = [
        f"the job runs the code as it is when it starts: {why}" for why in problems
    ]
    return filled_in, notes
