"""Idempotency keys as the ledger holds them: a key is its owner's, so two users may use
the same one.

The owner stands in front of the key, on a line of its own: no name of a user has a line
break. The keys of the instance's owner stand as they are, and so do those of users from
before keys were theirs.
"""


def owned_key(key: str, owner: str | None) -> str:
    """How the ledger holds this key of a user; None: of the owner of the instance."""
    return key if owner is None else f"{owner}\n{key}"


def given_key(owned: str) -> str:
    """The key as it was given."""
    return owned.rpartition("\n")[2]
