"""Files that commands write for people."""

import os
import secrets
from pathlib import Path


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all: what was there stays after a failure. OSError
    names the file.

    What is no regular file, such as `/dev/stdout`, is written to, and so is a file in a
    folder where no other can be made.
    """
    target = Path(os.path.realpath(path))
    is_other = target.exists() and not target.is_file()
    try:
        if is_other or not os.access(target.parent, os.W_OK):
            target.write_text(text, encoding="utf-8")
        else:
            _replace(target, text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _replace(target: Path, text: str) -> None:
    fresh = target.with_name(f".{secrets.token_hex(8)}")
    try:
        fresh.write_text(text, encoding="utf-8")
        if target.exists():
            fresh.chmod(target.stat().st_mode & 0o777)
        fresh.replace(target)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
