"""Which variables hold secrets, judged by their names.

Standard library only.
"""

import re
from collections.abc import Mapping

MASK = "***"
_KEY = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|JWT)(_|$)"
    r"|(^|_)KEY(_ID)?$"
)


def looks_like_key(name: str) -> bool:
    """True for names such as HF_TOKEN, AWS_SECRET_ACCESS_KEY and PGPASSWORD."""
    return _KEY.search(name.upper()) is not None


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with a mask in place of each value whose name looks like a key."""
    return {
        name: MASK if looks_like_key(name) else value
        for name, value in environment.items()
    }
