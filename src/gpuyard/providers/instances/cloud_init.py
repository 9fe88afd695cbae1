"""Renders the script that a rented machine runs when it boots for the first time: its
user data, which cloud-init runs on every cloud.

`boot.sh` is the script, and `end_when_silent.sh` what it leaves behind to end the
machine. Here are the values that differ from machine to machine.
"""

import math
import shlex
from functools import cache
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError
from gpuyard.providers.instances.boot_plan import BootPlan

MOST_BYTES = 16_384
"""What the clouds accept."""
_WATCHED = ("aws", "alibaba")
# How often a machine looks for how long the server has been silent: a quarter of the
# silence that ends it, within these limits.
_LONGEST_LOOK_S = 30


def user_data(boot: BootPlan) -> str:
    """The script, in plain text: it installs what the image lacks, joins, starts the
    node's agent, and ends the machine if one of these fails.

    InvalidInputError for values that no script can hold.
    """
    silence_s = max(math.ceil(boot.silence_s), 1)
    values = {
        "node_name": boot.node_name,
        "install": boot.install,
        "join_url": boot.join_url,
        "join_code": boot.join_code,
        "silence_s": str(silence_s),
        "look_s": str(min(max(silence_s // 4, 1), _LONGEST_LOOK_S)),
        "needs_gpus": str(boot.needs_gpus),
        "needs_docker": "yes" if boot.needs_docker else "no",
        "spot_notices": boot.cloud if boot.spot and boot.cloud in _WATCHED else "",
    }
    assignments = [f"{name}={_quoted(name, text)}" for name, text in values.items()]
    script = "\n".join(
        (
            "#!/bin/sh",
            "# The first boot of a machine that gpuyard has rented.",
            *assignments,
            "write_end_when_silent() {",
            "    cat <<'END_WHEN_SILENT'",
            _file("end_when_silent.sh").rstrip("\n"),
            "END_WHEN_SILENT",
            "}",
            _file("boot.sh"),
        )
    )
    size = len(script.encode())
    if size > MOST_BYTES:
        raise InvalidInputError.of(
            "install",
            f"makes a script of {size} bytes for a rented machine",
            f"clouds accept {MOST_BYTES}: give a shorter requirement or address",
        )
    return script


def _quoted(name: str, text: str) -> str:
    if "\0" in text:
        raise InvalidInputError.of(name, "holds a NUL character", "remove it")
    return shlex.quote(text)


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text()
