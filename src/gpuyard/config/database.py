"""Finds the ledger's database: a SQLite file in the home, unless a PostgreSQL address
was given.

The address is taken from the first of these: `[ledger] url` in gpuyard.toml or
`GPUYARD_LEDGER__URL`, then `$GPUYARD_HOME/database`, which `gpuyard up --database URL`
writes. It may hold a password, so it is never printed whole.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from gpuyard.config.paths import Home
from gpuyard.domain.errors import InvalidInputError

_SCHEMES = ("postgresql", "postgres")
_REMEDY = (
    "write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or sqlite for the file in the"
    " home"
)


def find_database(home: Home, url: str | None) -> Path | str:
    """The ledger of `home`: the path of its SQLite file, or a PostgreSQL URL.

    `url` comes from the settings.
    """
    field = "ledger.url"
    if url is None:
        field = str(home.database)
        url = _remembered(home)
    return home.ledger if url in (None, "", "sqlite") else checked_url(url, field)


def _remembered(home: Home) -> str | None:
    try:
        return home.database.read_text().strip()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        fault = "is not text"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    raise InvalidInputError.of(str(home.database), fault, "see its mode, or remove it")


def remember_database(home: Home, url: str) -> None:
    """Make the servers of this home use `url` from now on (`sqlite`: the file in the
    home). InvalidInputError.
    """
    if url == "sqlite":
        home.database.unlink(missing_ok=True)
        return
    checked_url(url, "--database")
    temporary = home.database.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(url + "\n")
    temporary.rename(home.database)


def checked_url(url: str, field: str) -> str:
    """`url` if it is a PostgreSQL address that can be used here; else
    InvalidInputError, which never shows it.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidInputError.of(field, "is not an address", _REMEDY) from None
    if parts.scheme not in _SCHEMES:
        raise InvalidInputError.of(field, "is no PostgreSQL address", _REMEDY)
    if len(parts.path) < 2:
        raise InvalidInputError.of(field, "names no database", _REMEDY)
    if find_spec("psycopg") is None:
        raise InvalidInputError.of(
            field,
            "is a PostgreSQL address, and its driver is not installed",
            "pip install 'gpuyard[postgresql]'",
        )
    return url


def shown(where: Path | str) -> str:
    """`where` for people and logs: without user and password."""
    if isinstance(where, Path):
        return str(where)
    parts = urlsplit(where)
    return f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
