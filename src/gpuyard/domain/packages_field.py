"""The field `packages` of a job: for people a file, or which one to take; in a spec the
digest of a stored list.
"""

import re

from gpuyard.domain.errors import quoted

AUTO = "auto"
NONE = "none"
LIKELY = (
    "uv.lock",
    "requirements.txt",
    "pyproject.toml",
    "environment.yml",
    "environment.yaml",
)
"""The files that `auto` looks for, in this order."""
SHA256 = re.compile(r"[0-9a-f]{64}")


def packages_digest(value: str) -> str:
    """The digest of a list of packages; ValueError."""
    if not SHA256.fullmatch(value):
        raise ValueError(
            f"{quoted(value)} is not the digest of a stored list; POST the file to"
            " /api/v1/packages, as `gpuyard run --packages` does"
        )
    return value


def check_packages(digest: str | None, *, is_plain: bool) -> None:
    """ValueError for a job that cannot have packages. `is_plain`: it is a command
    without an image.
    """
    if digest and not is_plain:
        raise ValueError(
            "@packages@are given, and only a command without an image can have them;"
            " remove them, or the image"
        )
