"""The code of a folder, as a document that names its files by their hashes."""

import msgspec


class CodeEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, or a link to `link`. `path` is relative, with slashes."""

    path: str
    sha256: str = ""
    executable: bool = False
    link: str = ""


class CodeTree(msgspec.Struct, frozen=True):
    """The code of a folder, sorted by path. `commit` is git's, empty without git;
    `dirty`: tracked files differ from it, and `diff` says how, without what looks like
    keys. `account`: the name of the account that it
    was read as, whose jobs alone may have it; empty where jobs run as the server does.
    """

    entries: list[CodeEntry]
    commit: str = ""
    dirty: bool = False
    account: str = ""
    diff: str = ""
