"""Copies of datasets in a cache of this host, made from their stored parts."""

from collections.abc import Callable
from functools import partial

from gpuyard.domain.contents import ContentKind
from gpuyard.domain.datasets import DatasetMount, read_manifest
from gpuyard.storage.dataset_cache import ChunkReader, DatasetCache
from gpuyard.storage.dataset_store import DatasetStores, read_part

ReadPart = Callable[[ContentKind, DatasetMount, str], bytes]
"""Gives a part of a version: its manifest, or a chunk. It blocks. DatasetMissingError,
OSError, or what stops the making.
"""


class StoredParts:
    """Reads parts where the server has stored them."""

    def __init__(self, stores: DatasetStores) -> None:
        self._stores = stores

    def __call__(self, _kind: ContentKind, mount: DatasetMount, digest: str) -> bytes:
        """See ReadPart."""
        return read_part(self._stores(mount.project), digest)


def have_copy(cache: DatasetCache, mount: DatasetMount, read: ReadPart) -> None:
    """Have a version in the cache. It blocks. DatasetMissingError or InvalidInputError
    if it is not stored whole, OSError if there is no room, or what `read` raises.
    """
    if cache.use(mount.digest):
        return
    manifest = read_manifest(read(ContentKind.DATASET, mount, mount.digest))
    cache.make_room(manifest.size)
    builder = cache.begin(mount.digest)
    read_chunk = partial(read, ContentKind.CHUNK, mount)
    try:
        builder.build(manifest, ChunkReader(manifest, read_chunk))
    except BaseException:
        builder.discard()
        raise
