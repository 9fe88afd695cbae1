"""The authority of an instance of several servers: each has its key in its own home,
and the ledger says which key it is. No database has the key itself.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.domain.errors import InvalidInputError
from gpuyard.ledger.queries import Queries

if TYPE_CHECKING:
    from gpuyard.server.authority import Authority

AUTHORITY_NOTE = "authority"
"""The note of the ledger with the fingerprint of the authority."""


def known_fingerprint(queries: Queries) -> str:
    """The fingerprint of the authority at which machines join; empty as long as no
    server has listened for any. LedgerError.
    """
    return str(queries.note(AUTHORITY_NOTE).get("fingerprint", ""))


def authority_in(folder: Path, known: str, *, listens: bool) -> "Authority | None":
    """The authority in the home of a server; None where no machine has ever joined.
    `known`: the fingerprint that the ledger says. `listens`: it is made if nobody has
    any. InvalidInputError if it is another one than that, or cannot be read.
    """
    has_one = folder.exists()
    if not known and not has_one and not listens:
        return None
    # Late: a server without such machines needs neither TLS nor certificates.
    from gpuyard.server.authority import Authority

    try:
        found = Authority.of(folder) if has_one or not known else None
    except (OSError, ValueError) as error:
        raise InvalidInputError.of(
            "server.agents_listen",
            f"needs the key in {folder}, which cannot be read: {error}",
            "let the account of this server read this folder, and nobody else",
        ) from None
    if known and (found is None or found.fingerprint != known):
        raise InvalidInputError.of(
            "server.agents_listen",
            "needs the key by which machines know this instance, and"
            f" {folder} has {'another' if found else 'none'}",
            "copy this folder from the home of the server where they have joined, and"
            " let nobody else read it",
        )
    return found
