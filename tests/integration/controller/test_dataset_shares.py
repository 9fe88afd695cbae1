"""With how many projects a dataset is shared."""

import pytest

from gpuyard.controller import datasets
from gpuyard.controller.users import OWNER
from gpuyard.domain.datasets import Manifest
from gpuyard.domain.errors import RefusedError
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio


async def test_a_dataset_is_shared_with_so_many_projects_at_most(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "MOST_SHARES", 2)
    known = instance.controller.datasets
    await known.add_version(OWNER, "vision", "corpus", Manifest([], []))

    async def share(other: str, *, shared: bool = True) -> list[str]:
        found = await known.share(OWNER, "vision", "corpus", other, shared=shared)
        return found.shared_with

    await share("a")
    assert await share("b") == ["a", "b"]
    assert await share("b") == ["a", "b"], "once more is no further one"
    with pytest.raises(RefusedError, match="shared with 2 projects") as refused:
        await share("c")
    assert "--stop" in (refused.value.remedy or "")
    assert await share("a", shared=False) == ["b"]
    assert await share("c") == ["b", "c"]
