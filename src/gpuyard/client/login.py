"""The server of another machine or user that `gpuyard login` was given: the commands of
this home use it until `gpuyard logout`.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.config.paths import Home
from gpuyard.domain.errors import InvalidInputError

_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Login:
    """A server's URL, and the token of who has signed in."""

    url: str
    token: str


def read_login(home: Home) -> Login | None:
    """The login of this home, if there is one; InvalidInputError if it cannot be
    read.
    """
    try:
        file = os.open(home.login, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _broken(home, error.strerror or str(error)) from None
    try:
        _refuse_others(home, os.fstat(file))
        text = os.read(file, _MOST_BYTES)
    finally:
        os.close(file)
    try:
        found = json.loads(text)
        return Login(str(found["url"]), str(found["token"]))
    except (ValueError, TypeError, KeyError):
        raise _broken(home, "is no login") from None


def _refuse_others(home: Home, found: os.stat_result) -> None:
    """InvalidInputError unless only we, or root, could write and read it: it says which
    server is given all that we submit.
    """
    if not stat.S_ISREG(found.st_mode):
        raise _broken(home, "is no file")
    if found.st_uid not in (0, os.geteuid()):
        raise _broken(home, "belongs to another user")
    if found.st_mode & 0o077:
        raise _broken(home, "is open to other users, so its token may be known")


def keep_login(home: Home, login: Login) -> None:
    """Keep a login, whole or not at all; only our own user may read it."""
    home.create()
    draft = home.login.with_suffix(".partial")
    draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
        json.dump({"url": login.url, "token": login.token}, file)
    draft.replace(home.login)


def forget_login(home: Home) -> bool:
    """Forget it; whether there was one."""
    existed = home.login.exists()
    home.login.unlink(missing_ok=True)
    return existed


def told_server(home: Home, environment: Mapping[str, str] = os.environ) -> str | None:
    """The URL that `$GPUYARD_URL` or a login tells; None without both."""
    url = environment.get("GPUYARD_URL")
    if url:
        return url
    login = read_login(home)
    return login.url if login else None


def _broken(home: Home, fault: str) -> InvalidInputError:
    return InvalidInputError.of(
        str(home.login), fault, "run `gpuyard login` again, or `gpuyard logout`"
    )
