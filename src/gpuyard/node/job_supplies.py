"""What the jobs of a node need beside their programs: what was submitted with them,
datasets, packages, and checkpoints of other machines.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuyard.node.dataset_copies import FetchedParts, NodeDatasets, dataset_cache
from gpuyard.node.fetching import Fetching
from gpuyard.node.journal import AttemptJournal
from gpuyard.node.link import ServerAddress
from gpuyard.node.linked_blobs import BlobLink
from gpuyard.node.package_environments import (
    PackageEnvironments,
    package_environments,
)
from gpuyard.node.this_node import ThisNode
from gpuyard.storage.contents import stores_of_node
from gpuyard.storage.dataset_copies import ReadPart, StoredParts
from gpuyard.storage.dataset_store import DatasetStores
from gpuyard.storage.package_lists import PackageLists


@dataclass(frozen=True, slots=True)
class JobSupplies:
    """Where the jobs of a node get what they need. `blob_link`: how checkpoints get to
    the server, on a machine that has joined an instance.
    """

    fetching: Fetching
    fetched_parts: FetchedParts
    datasets: NodeDatasets
    packages: PackageEnvironments
    blob_link: BlobLink | None

    @classmethod
    def of(
        cls,
        node: ThisNode,
        journal: AttemptJournal,
        server: Callable[[], ServerAddress | None],
        dataset_stores: DatasetStores | None,
        datasets_in_use: Callable[[], Mapping[str, bool]],
        packages_in_use: Callable[[], Sequence[str]],
    ) -> "JobSupplies":
        """`server()` is the address of the server that the agent is linked with, None
        while it is linked with none. `dataset_stores`: those of this host, if it has
        them; else all parts come from the server. `datasets_in_use`: see
        `DatasetCache`; `packages_in_use`: see `PackageEnvironments`.
        """
        home = node.home
        fetching = Fetching(
            home.root, journal, server, node.accounts, is_joined=node.is_joined
        )
        fetched_parts = FetchedParts(fetching)
        read_part: ReadPart = fetched_parts
        if dataset_stores and not node.is_joined:
            read_part = StoredParts(dataset_stores)
        cache = dataset_cache(home, node.settings, node.id, datasets_in_use)
        package_lists = PackageLists(stores_of_node(home.root))
        return cls(
            fetching=fetching,
            fetched_parts=fetched_parts,
            datasets=NodeDatasets(cache, read_part),
            packages=package_environments(
                home, node.settings, node.id, package_lists.get, packages_in_use
            ),
            blob_link=BlobLink(server) if node.is_joined else None,
        )

    def begin(self) -> None:
        """Call this in the event loop of the agent, before attempts run."""
        if self.blob_link:
            self.blob_link.begin()
        self.fetched_parts.begin()
