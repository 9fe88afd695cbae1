"""Renders the script that a rented machine runs when it boots for the first time."""

import shlex

from gpuyard.providers.instances.boot_plan import BootPlan


def user_data(boot: BootPlan) -> str:
    """The script, in plain text: it installs gpuyard, joins, and starts the node."""
    lines = [
        "#!/bin/bash",
        "set -eu",
        f"python3 -m pip install {shlex.quote(boot.install)}",
        shlex.join(["gpuyard", "join", boot.join_url, boot.join_code]),
    ]
    return "\n".join(lines) + "\n"
