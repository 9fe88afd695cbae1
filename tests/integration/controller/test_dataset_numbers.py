"""The numbers of the versions of a dataset."""

import pytest

from gpuyard.controller.users import OWNER
from gpuyard.domain.datasets import Manifest
from gpuyard.domain.errors import NotFoundError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.storage.dataset_store import DatasetMissingError
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio


async def test_a_number_does_not_come_again_after_the_dataset_was_removed(
    instance: Controlled,
) -> None:
    known = instance.controller.datasets
    files = [("a.txt", 0, False)]
    await known.add_version(OWNER, "vision", "corpus", Manifest(files, []))
    waits = JobSpec(command=("true",), datasets=("vision/corpus@1",))
    assert len(known.mounts(waits)) == 1
    await known.share(OWNER, "vision", "corpus", "school", shared=True)
    await known.remove(OWNER, "vision", "corpus")
    with pytest.raises(NotFoundError, match="no dataset vision/corpus"):
        known.find("vision", "corpus")
    other = Manifest([("b.txt", 0, False)], [])
    again = await known.add_version(OWNER, "vision", "corpus", other)
    assert [version.number for version in again.versions] == [2]
    with pytest.raises(DatasetMissingError, match="corpus@1 was removed"):
        known.mounts(waits)
    assert known.find("vision", "corpus").shared_with == []
