"""The methods of `AsyncClient` for datasets."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpuyard.client import dataset_calls
from gpuyard.client.calls import Call
from gpuyard.client.dataset_upload import MOST_OPEN, Tell, advance, upload
from gpuyard.domain.datasets import Dataset, DatasetFile
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.workspaces import DEFAULT_PROJECT

T = TypeVar("T")


class AsyncDatasetMethods:
    """Data that jobs read: each version of a dataset stays as it is."""

    async def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    async def add_dataset(
        self,
        name: str,
        path: str | Path,
        *,
        project: str = DEFAULT_PROJECT,
        only: Sequence[str] | None = None,
        tell: Tell = lambda _stored, _of: None,
    ) -> Dataset:
        """Upload a file or a folder as the next version of a dataset, or of a folder
        `only` these files; nothing is added if it equals the newest. What the server
        has already is not sent, so the same call goes on where one was broken off.
        `tell` hears how many bytes of how many are stored.
        """
        work = upload(project, name, Path(path), tell, only)
        step = await asyncio.to_thread(advance, work)
        begun: deque[asyncio.Task[Any]] = deque()
        try:
            while not isinstance(step, Dataset):
                try:
                    calls = [asyncio.create_task(self.call(call)) for call in step]
                    begun.extend(calls[1:])
                    answers = [await call for call in calls[:1]]
                    while len(begun) > (MOST_OPEN if step else 0):
                        await begun.popleft()
                except RefusedError as error:
                    answers = error
                step = await asyncio.to_thread(advance, work, answers)
        finally:
            for call in begun:
                call.cancel()
            await asyncio.gather(*begun, return_exceptions=True)
        return step

    async def datasets(self, project: str | None = None) -> list[Dataset]:
        """Those that you may use, of one project or of all."""
        return await self.call(dataset_calls.listing(project))

    async def dataset(self, name: str, project: str = DEFAULT_PROJECT) -> Dataset:
        """One dataset with its versions, the newest first; NotFoundError."""
        return await self.call(dataset_calls.show(project, name))

    async def dataset_files(
        self, name: str, version: int, project: str = DEFAULT_PROJECT
    ) -> AsyncIterator[DatasetFile]:
        """Every file of a version, read page by page."""
        cursor: str | None = ""
        while cursor is not None:
            call = dataset_calls.files(project, name, version, cursor)
            page, cursor = await self.call(call)
            for file in page:
                yield file

    async def share_dataset(
        self,
        name: str,
        other: str,
        project: str = DEFAULT_PROJECT,
        *,
        shared: bool = True,
    ) -> Dataset:
        """Let another project use a dataset, or no longer."""
        call = dataset_calls.share(project, name, other, shared=shared)
        return await self.call(call)

    async def remove_dataset(
        self, name: str, version: int | None = None, project: str = DEFAULT_PROJECT
    ) -> Dataset:
        """Remove a dataset, or one version; what it was."""
        return await self.call(dataset_calls.remove(project, name, version))
