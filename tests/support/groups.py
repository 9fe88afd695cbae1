"""The control groups that a killed agent leaves to one that never comes."""

from contextlib import suppress

from gpuyard.config.paths import Home
from gpuyard.node.launcher import remove_empty


def remove_groups(home: Home) -> None:
    """Remove the groups of a home's node and of its attempts, as far as nothing is in
    them.
    """
    with suppress(OSError):
        owner = (home.node / "id").read_text().strip()
        attempts = {log.stem for log in (home.node / "attempts").glob("*.log")}
        remove_empty(lambda name: name in attempts or name.startswith(f"{owner}-"))
