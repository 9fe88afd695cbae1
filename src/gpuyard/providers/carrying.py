"""Bringing files from one place to another with rsync: only what differs travels, and a file comes whole or not at all.

Both ends need rsync. Of a file that both have the newer one stays, and nothing is removed: two jobs that use one
workspace in two places at once both keep what they made.
"""

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path

from gpuyard.domain.errors import ProviderError

# rsync's own codes for a way that broke or timed out, and ssh's.
_LOST = {10, 12, 30, 35, 255}
_SILENT_S = 60


async def bring(source: str, target: str, provider: str, ssh: Sequence[str] = ()) -> None:
    """Bring a file, or all that a folder holds where `source` ends in `/`, to `target`, the same kind of path.

    Either may be on another host, as `HOST:PATH`, which the command `ssh` reaches. ProviderError with the codes
    NOT_CONNECTED, NOT_INSTALLED or SPOOL.
    """
    way = ("-e", shlex.join(ssh)) if ssh else ()
    command = ("rsync", "-rlpt", "--update", "-s", f"--timeout={_SILENT_S}", *way, "--", source, target)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError:
        message = "rsync is not on this host, and files have to travel. Install it."
        raise ProviderError(message, provider, "NOT_INSTALLED") from None
    try:
        _, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    if process.returncode:
        said = err.decode(errors="replace").strip().splitlines()
        code = "NOT_CONNECTED" if process.returncode in _LOST else "SPOOL"
        raise ProviderError(f"rsync to {target}: {said[0] if said else 'failed'}", provider, code)


def inside(folder: Path | str) -> str:
    """What the folder holds, in rsync's words."""
    return f"{folder}/"
