"""Names of secrets, and which variables hold one, judged by their names.

Standard library only.
"""

import re
from collections.abc import Mapping

MASK = "***"
_KEY = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|JWT)(_|$)"
    r"|(^|_)KEY(_ID)?$"
)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def secret_name(text: str) -> str:
    """`text`, if it can be the name of a secret; else ValueError, without the text: it
    may be a value in the wrong place.
    """
    if not is_secret_name(text):
        raise ValueError(
            "is not the name of a secret; use up to 128 letters, digits, _, . and -"
        )
    return text


def is_secret_name(text: str) -> bool:
    """Whether `text` can be the name of a secret."""
    return _NAME.fullmatch(text) is not None


def stored_name(name: str, owner: str | None) -> str:
    """How the store calls a secret: those of a user have its name before theirs, and
    no name of either holds a slash.
    """
    return name if owner is None else f"{owner}/{name}"


def split_stored(stored: str) -> tuple[str, str | None]:
    """The name and the owner of a secret in the store; without one, it is shared."""
    owner, slash, name = stored.rpartition("/")
    return name, owner if slash else None


def looks_like_key(name: str) -> bool:
    """True for names such as HF_TOKEN, AWS_SECRET_ACCESS_KEY and PGPASSWORD."""
    return _KEY.search(name.upper()) is not None


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with a mask in place of each value whose name looks like a key."""
    return {
        name: MASK if looks_like_key(name) else value
        for name, value in environment.items()
    }
