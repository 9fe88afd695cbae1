"""The lists of packages that jobs need, each once under its hash, beside the variables
that they carry. The specs of jobs have only their digests.
"""

from collections.abc import Callable

import msgspec

from gpuyard.domain.contents import ContentKind, ContentMissingError, Stores
from gpuyard.domain.packages import PackageList
from gpuyard.storage.contents import read_whole


class PackagesMissingError(FileNotFoundError):
    """There is no list with this digest, or its file is damaged."""


class PackageLists:
    """The lists, which the server writes and the agent reads."""

    def __init__(self, stores: Stores) -> None:
        self._contents = stores(ContentKind.ENVIRONMENT)

    def put(self, packages: PackageList) -> str:
        """Store it, unless it is there; returns its digest. OSError, GpuyardError."""
        content = msgspec.json.encode(packages, order="deterministic")
        (digest,) = self._contents.put([content])
        return digest

    def get(self, digest: str) -> PackageList:
        """The list; PackagesMissingError."""
        try:
            encoded = read_whole(self._contents, digest)
            return msgspec.json.decode(encoded, type=PackageList)
        except (ContentMissingError, ValueError) as error:
            raise PackagesMissingError(
                f"the packages {digest[:19]} that it was submitted with are no longer"
                " stored; submit the job again"
            ) from error


ReadPackages = Callable[[str], PackageList]
"""Gives the list with a digest; PackagesMissingError."""
