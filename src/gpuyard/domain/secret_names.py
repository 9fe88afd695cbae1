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
# Bounded, because a line of letters may be as long as a file.
_NAMED = r"(?<!\w)(?<!\w-)([A-Za-z_][\w-]{0,63})"
_QUOTED = r"""[A-Za-z]{0,2}(?:"[^"\n]*"|'[^'\n]*')"""
_ASSIGNED = re.compile(
    rf"""{_NAMED}(['"]?\s{{0,9}}[:=]\s{{0,9}})({_QUOTED}|['"]?[^\s'",;]+)"""
)
_ANNOTATED = re.compile(rf"{_NAMED}(\s?:\s?[\w.\[\]| ]{{1,99}}\s=\s?)({_QUOTED})")
# Keys that show by themselves, and passwords in addresses.
_BARE = re.compile(
    r"\b(?:sk-|hf_|ghp_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{12,}"
    r"|(?<=://)[^/@\s:]*:[^/\s]+(?=@)"
    r"|(?<=Bearer )[\w.~+/=-]{12,}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.*?)"
    r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
)
_OPENING_QUOTE = re.compile(r"[A-Za-z]{0,2}['\"]")
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


def mask_keys(text: str) -> str:
    """A text such as a program with a mask in place of what is assigned to names that
    look like keys, and of what looks like a key itself.
    """
    annotated = _ANNOTATED.sub(_masked, text)
    return _BARE.sub(MASK, _ASSIGNED.sub(_masked, annotated))


def _masked(match: re.Match[str]) -> str:
    (name, between, value) = match.groups()
    if not looks_like_key(name.replace("-", "_")):
        return match[0]
    opening = _OPENING_QUOTE.match(value)
    if opening is None:
        return f"{name}{between}{MASK}"
    is_closed = len(value) > 1 and value[-1] in "'\""
    closing = value[-1] if is_closed else ""
    return f"{name}{between}{opening[0]}{MASK}{closing}"
