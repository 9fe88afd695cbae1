"""Datasets: their versions, who may use them, and which version a job gets.

They are read from the ledger each time, so a server on standby knows them, too.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.controller.access import Access
from gpuyard.controller.core import Core
from gpuyard.controller.projects import unknown_project
from gpuyard.controller.users import Identity
from gpuyard.controller.visibility import EVERYTHING, Visibility
from gpuyard.domain.dataset_names import DatasetReference, shown_project
from gpuyard.domain.datasets import (
    Dataset,
    DatasetMount,
    DatasetVersion,
    Manifest,
)
from gpuyard.domain.errors import InvalidInputError, NotFoundError, RefusedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.jobspec import JobSpec
from gpuyard.storage import dataset_store
from gpuyard.storage.dataset_store import (
    DatasetMissingError,
    DatasetSource,
    DatasetStores,
)
from gpuyard.storage.place import in_background

# Each change of a dataset writes all of them.
MOST_SHARES = 100
_SHOWN = 5
_MOST_REMEMBERED = 16
# Who has not gone on with an upload for so long will not.
_UNFINISHED_S = 7 * 86_400.0


class Datasets:
    """The datasets of an instance. `stores` has their chunks."""

    def __init__(self, core: Core, stores: DatasetStores, access: Access) -> None:
        self._core = core
        self._access = access
        self.stores = stores
        # One change at a time: each reads the ledger first.
        self._lock = asyncio.Lock()
        # The chunks of versions that agents have asked for.
        self._parts: dict[tuple[str, str], frozenset[str]] = {}

    # --- reading ---

    def visible_to(
        self, visibility: Visibility, project: str | None = None
    ) -> list[Dataset]:
        """The datasets that exist for who asks, of one project or of all."""
        rows = [
            row
            for row in self._core.queries.datasets()
            if project in (None, row["project"]) and _is_seen(row, visibility)
        ]
        return self._shown(rows, visibility)

    def find(
        self, project: str, name: str, visibility: Visibility = EVERYTHING
    ) -> Dataset:
        """A dataset; NotFoundError, also if it does not exist for who asks."""
        row = self._core.queries.dataset(f"{project}/{name}")
        if row is None or not _is_seen(row, visibility):
            raise _unknown(project, name)
        return self._shown([row], visibility)[0]

    def _shown(
        self, rows: Sequence[Mapping[str, Any]], visibility: Visibility
    ) -> list[Dataset]:
        ids = [row["id"] for row in rows]
        versions: dict[str, list[DatasetVersion]] = {each: [] for each in ids}
        for version in self._core.queries.dataset_versions(ids):
            shown = DatasetVersion.model_validate(version)
            versions[version["dataset"]].append(shown)
        return [
            Dataset(
                project=row["project"],
                name=row["name"],
                owner=row["owner"],
                created_at=row["created_at"],
                shared_with=[
                    each for each in row["shared_with"] if visibility.sees(each)
                ],
                versions=versions[row["id"]],
            )
            for row in rows
        ]

    async def manifest(self, dataset: Dataset, version: DatasetVersion) -> Manifest:
        """What a version holds; NotFoundError if it is no longer stored, OSError."""
        read = dataset_store.manifest_of
        try:
            return await in_background(
                read, self.stores(dataset.project), version.digest
            )
        except DatasetMissingError as error:
            raise NotFoundError(f"{_named(dataset, version)}: {error}.") from None

    # --- changing ---

    async def add_version(
        self, identity: Identity, project: str, name: str, manifest: Manifest
    ) -> Dataset:
        """Add a version whose chunks are stored, unless the newest one is equal; makes
        the dataset if there is none. RefusedError if chunks are missing.
        """
        blobs = self.stores(project)
        async with self._lock:
            lacking = await in_background(
                dataset_store.missing, blobs, manifest.digests
            )
            if lacking:
                raise RefusedError(
                    f"{len(lacking)} of its chunks are not stored.",
                    "Send them first: ask `chunks:missing` which.",
                )
            row = self._core.queries.dataset(f"{project}/{name}")
            newest = self._newest(row["id"]) if row else None
            if newest is None or newest["digest"] != manifest.digest:
                await in_background(blobs.sync_names, manifest.digests)
                digest = await in_background(
                    dataset_store.put_manifest, blobs, manifest
                )
                self._emit_version(identity, project, name, manifest, digest, row)
                await self._core.committed()
        return self.find(project, name)

    def _newest(self, dataset_id: str) -> Mapping[str, Any] | None:
        return next(iter(self._core.queries.dataset_versions([dataset_id])), None)

    def _emit_version(
        self,
        identity: Identity,
        project: str,
        name: str,
        manifest: Manifest,
        digest: str,
        row: Mapping[str, Any] | None,
    ) -> None:
        now = self._core.clock()
        dataset_id = f"{project}/{name}"
        number = self._core.queries.last_dataset_version(dataset_id) + 1
        values: dict[str, Any] = {"last_version": number}
        if row is None:
            values |= {
                "project": project,
                "name": name,
                "owner": identity.user,
                "created_at": now,
                "shared_with": [],
            }
        version = {
            "dataset": dataset_id,
            "number": number,
            "digest": digest,
            "size": manifest.size,
            "files": len(manifest.files),
            "created_at": now,
            "created_by": identity.user,
        }
        changes = (
            Change(Table.DATASETS, dataset_id, values),
            Change(Table.DATASET_VERSIONS, f"{dataset_id}@{number}", version),
        )
        info = {"project": project, "dataset": name, "version": number}
        self._emit(EventKind.DATASET_ADDED, changes, info)

    async def share(
        self, identity: Identity, project: str, name: str, other: str, *, shared: bool
    ) -> Dataset:
        """Let another project use a dataset, or no longer. Who may change the dataset
        does it. NotFoundError, ForbiddenError.
        """
        visibility = self._access.visibility_of(identity)
        async with self._lock:
            dataset = self._changed_by(identity, project, name)
            row = self._core.queries.dataset(f"{project}/{name}")
            assert row
            if not visibility.sees(other):
                raise unknown_project(other)
            projects = set(row["shared_with"]) - {other}
            if shared and other != project:
                projects.add(other)
            if len(projects) > MOST_SHARES:
                raise RefusedError(
                    f"{project}/{name} is shared with {MOST_SHARES} projects, and no"
                    " more may have it.",
                    "Stop it for some: `gpuyard datasets share NAME WITH --stop`.",
                )
            values = {"shared_with": sorted(projects)}
            change = Change(Table.DATASETS, f"{project}/{name}", values)
            info = {"project": project, "dataset": name, **values}
            self._emit(EventKind.DATASET_SHARED, (change,), info)
            await self._core.committed()
        return self.find(dataset.project, dataset.name, visibility)

    async def remove(
        self, identity: Identity, project: str, name: str, number: int | None = None
    ) -> Dataset:
        """Remove a dataset, or one version; what it was. Chunks that no other version
        of the project has are removed, too. NotFoundError, ForbiddenError.
        """
        queries = self._core.queries
        async with self._lock:
            dataset = self._changed_by(identity, project, name)
            removed = [version_of(dataset, number)] if number else dataset.versions
            dataset_id = f"{project}/{name}"
            changes = [
                Change(Table.DATASET_VERSIONS, f"{dataset_id}@{version.number}", None)
                for version in removed
            ]
            if number is None:
                # Its row keeps `last_version`: a job that waits for version 1 must not
                # get what somebody adds under this name later.
                gone: dict[str, Any] = {
                    "created_at": None,
                    "owner": None,
                    "shared_with": [],
                }
                changes.append(Change(Table.DATASETS, dataset_id, gone))
            info: dict[str, Any] = {"project": project, "dataset": name}
            if number:
                info["version"] = number
            self._emit(EventKind.DATASET_REMOVED, tuple(changes), info)
            await self._core.committed()
            digests = [version.digest for version in removed]
            await in_background(
                dataset_store.remove_unused,
                self.stores(project),
                digests,
                queries.dataset_digests(project),
            )
        return dataset

    def _changed_by(self, identity: Identity, project: str, name: str) -> Dataset:
        """The dataset that who asks may change; NotFoundError, ForbiddenError."""
        dataset = self.find(project, name, self._access.visibility_of(identity))
        thing = f"The dataset {project}/{name}"
        self._access.check_changes(identity, thing, project, dataset.owner)
        return dataset

    def check_adds(self, identity: Identity, project: str) -> None:
        """ForbiddenError or NotFoundError unless who asks may add datasets to the
        project.
        """
        if "/" in project:
            raise InvalidInputError.of(
                "project", "has a slash", "use a project without one for datasets"
            )
        self._access.check_submits(identity, project)

    def _emit(
        self, kind: EventKind, changes: tuple[Change, ...], info: Mapping[str, Any]
    ) -> None:
        self._core.emit([Event(kind, self._core.clock(), changes, None, info)])

    async def remove_abandoned(self) -> int:
        """Remove what was uploaded long ago and never became part of a version; how
        many chunks. OSError.
        """
        queries = self._core.queries
        projects = {row["project"] for row in queries.datasets()}
        by_folder = {dataset_store.folder_of(one): one for one in projects}
        before = self._core.clock() - _UNFINISHED_S
        count = 0
        stores = await in_background(self.stores.in_folders)
        for folder, blobs in stores.items():
            # Outside the lock: a large bucket takes minutes to list.
            old = await in_background(blobs.older_than, before)
            async with self._lock:  # no version is added meanwhile
                project = by_folder.get(folder)
                kept = queries.dataset_digests(project) if project else ()
                count += await in_background(
                    dataset_store.remove_abandoned, blobs, old, kept
                )
        return count

    # --- the datasets of jobs ---

    def pinned(self, spec: JobSpec, visibility: Visibility) -> JobSpec:
        """`spec` with the versions that its datasets have now. InvalidInputError names
        what there is none of, for who submits it.
        """
        if not spec.datasets:
            return spec
        pinned = tuple(
            self._pin(f"datasets.{position}", text, spec.project, visibility)
            for position, text in enumerate(spec.datasets)
        )
        return spec.model_copy(update={"datasets": pinned})

    def _pin(
        self, field: str, text: str, job_project: str | None, visibility: Visibility
    ) -> str:
        reference = DatasetReference.parse(text)
        try:
            dataset = self._meant(reference, shown_project(job_project), visibility)
            version = version_of(dataset, reference.version)
        except NotFoundError as error:
            fault = error.message.rstrip(".")
            raise InvalidInputError.of(field, fault, error.remedy) from None
        pinned = (dataset.project, dataset.name, version.number, reference.path)
        return str(DatasetReference(*pinned))

    def _meant(
        self, reference: DatasetReference, job_project: str, visibility: Visibility
    ) -> Dataset:
        """Of a name alone: that of the project of the job; else the one that is shared
        with it.
        """
        if reference.project:
            return self.find(reference.project, reference.name, visibility)
        rows = self._core.queries.datasets_named(reference.name)
        seen = self._shown(
            [row for row in rows if _is_seen(row, visibility)], visibility
        )
        own = [each for each in seen if each.project == job_project]
        shared = [each for each in seen if job_project in each.shared_with]
        found = own or shared
        if len(found) == 1:
            return found[0]
        if found or seen:
            names = ", ".join(f"{each.project}/{each.name}" for each in (found or seen))
            raise NotFoundError(
                f"{reference.name} is not of the project {job_project}.",
                f"Say which is meant: {names}.",
            )
        raise _unknown(job_project, reference.name)

    def mounts(self, spec: JobSpec) -> tuple[DatasetMount, ...]:
        """What a node needs to know of the datasets of a job; DatasetMissingError if a
        version was removed.
        """
        return tuple(self._mount(text) for text in spec.datasets)

    def source(self, project: str) -> DatasetSource:
        """Where agents read the datasets of a project."""
        return DatasetSource(self.stores(project))

    def parts_of(self, mount: DatasetMount) -> frozenset[str]:
        """The digests of the chunks of a version; none if it is not stored. Blocks."""
        key = (mount.project, mount.digest)
        if key not in self._parts:
            if len(self._parts) >= _MOST_REMEMBERED:
                self._parts.clear()
            try:
                read = dataset_store.manifest_of
                manifest = read(self.stores(mount.project), mount.digest)
            except DatasetMissingError:
                return frozenset()
            self._parts[key] = frozenset(manifest.digests)
        return self._parts[key]

    def _mount(self, text: str) -> DatasetMount:
        reference = DatasetReference.parse(text)
        key = str(reference._replace(path=None))
        version = self._core.queries.dataset_version(key)
        if version is None or not reference.project:
            raise DatasetMissingError(f"the dataset {key} was removed")
        digest = version["digest"]
        place = reference.place
        return DatasetMount(reference.variable, reference.project, digest, place)


def version_of(dataset: Dataset, number: int | None) -> DatasetVersion:
    """A version, or the newest; NotFoundError."""
    for version in dataset.versions:
        if number in (None, version.number):
            return version
    name = f"{dataset.project}/{dataset.name}"
    numbers = ", ".join(str(version.number) for version in dataset.versions[:_SHOWN])
    raise NotFoundError(
        f"{name} has no version {number if number is not None else 'yet'}.",
        f"It has: {numbers}."
        if numbers
        else f"Add one: `gpuyard datasets add {name}`.",
    )


def _named(dataset: Dataset, version: DatasetVersion) -> str:
    return str(DatasetReference(dataset.project, dataset.name, version.number))


def _is_seen(row: Mapping[str, Any], visibility: Visibility) -> bool:
    """Whether the dataset exists for who asks: it sees its project, or one that it is
    shared with.
    """
    return any(visibility.sees(one) for one in (row["project"], *row["shared_with"]))


def _unknown(project: str, name: str) -> NotFoundError:
    return NotFoundError(
        f"There is no dataset {project}/{name}.", "`gpuyard datasets list` lists them."
    )
