"""The methods of `Client` for datasets."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from gpuyard.client import dataset_calls
from gpuyard.client.calls import Call
from gpuyard.client.dataset_upload import (
    AT_ONCE,
    MOST_OPEN,
    Tell,
    advance,
    upload,
)
from gpuyard.domain.datasets import Dataset, DatasetFile
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.workspaces import DEFAULT_PROJECT

T = TypeVar("T")


class DatasetMethods:
    """Data that jobs read: each version of a dataset stays as it is."""

    def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    def add_dataset(
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
        step = advance(work)
        with ThreadPoolExecutor(AT_ONCE, "upload") as threads:
            begun: deque[Future[Any]] = deque()
            while not isinstance(step, Dataset):
                try:
                    calls = [threads.submit(self.call, call) for call in step]
                    begun.extend(calls[1:])
                    while len(begun) > (MOST_OPEN if step else 0):
                        begun.popleft().result()
                    answers = [call.result() for call in calls[:1]]
                except RefusedError as error:
                    answers = error
                step = advance(work, answers)
        return step

    def datasets(self, project: str | None = None) -> list[Dataset]:
        """Those that you may use, of one project or of all."""
        return self.call(dataset_calls.listing(project))

    def dataset(self, name: str, project: str = DEFAULT_PROJECT) -> Dataset:
        """One dataset with its versions, the newest first; NotFoundError."""
        return self.call(dataset_calls.show(project, name))

    def dataset_files(
        self, name: str, version: int, project: str = DEFAULT_PROJECT
    ) -> Iterator[DatasetFile]:
        """Every file of a version, read page by page."""
        cursor: str | None = ""
        while cursor is not None:
            call = dataset_calls.files(project, name, version, cursor)
            page, cursor = self.call(call)
            yield from page

    def share_dataset(
        self,
        name: str,
        other: str,
        project: str = DEFAULT_PROJECT,
        *,
        shared: bool = True,
    ) -> Dataset:
        """Let another project use a dataset, or no longer."""
        call = dataset_calls.share(project, name, other, shared=shared)
        return self.call(call)

    def remove_dataset(
        self, name: str, version: int | None = None, project: str = DEFAULT_PROJECT
    ) -> Dataset:
        """Remove a dataset, or one version; what it was."""
        return self.call(dataset_calls.remove(project, name, version))
