"""Where this server stores what jobs take along from their submission."""

import time
from collections.abc import Callable
from pathlib import Path

from gpuyard.domain.contents import ContentKind, Contents, Stores
from gpuyard.ledger.ledger import Ledger
from gpuyard.storage.contents import LayeredContents, folder_stores


def stores_of(
    ledger: Ledger, home: Path, clock: Callable[[], float] = time.time
) -> Stores:
    """In the home. Where several servers may share the ledger, in its database: then
    whichever of them starts a job finds it; and what is in the home is from before.
    """
    in_home = folder_stores(home)
    if not ledger.shared:
        return in_home

    def store(kind: ContentKind) -> Contents:
        return LayeredContents(ledger.contents(kind, clock), in_home(kind))

    return store
