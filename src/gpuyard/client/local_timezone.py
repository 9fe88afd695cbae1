"""The name of the time zone of this machine, as cron would use it."""

import os
from pathlib import Path
from zoneinfo import ZoneInfo

from gpuyard.domain.errors import InvalidInputError

_LOCALTIME = Path("/etc/localtime")
_NAME = Path("/etc/timezone")


def local_timezone(localtime: Path = _LOCALTIME, name_file: Path = _NAME) -> str:
    """A name such as `Europe/Berlin`: of `$TZ`, of the file that `localtime` links to,
    or in `name_file`. `UTC` on a machine that says nothing.

    InvalidInputError if the machine has a time zone without a name.
    """
    given = os.environ.get("TZ", "").removeprefix(":")
    if given:
        candidates = [given, _below_zoneinfo(given)]
    else:
        candidates = [_below_zoneinfo(str(localtime.resolve())), _content(name_file)]
    for name in candidates:
        if _is_zone(name):
            return name
    if not given and not localtime.exists():
        return "UTC"
    raise InvalidInputError.of(
        "timezone",
        f"is missing, and {given or localtime} has no name that servers know",
        "write it, such as --timezone Europe/Berlin",
    )


def _below_zoneinfo(path: str) -> str:
    """The part of a path behind the folder of all time zones."""
    return path.rpartition("/zoneinfo/")[2]


def _content(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return bool(name)
