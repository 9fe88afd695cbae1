"""GPUs of trusted executors that other jobs fill."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from gpuyard.client.aio import AsyncClient
from gpuyard.client.calls import Call
from gpuyard.config.verification import ExecutorSettings
from gpuyard.domain.errors import UnreachableError
from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.trust import Trust
from gpuyard.verification.classes import Class
from gpuyard.verification.executors import Executor
from gpuyard.verification.records import Records
from gpuyard.verification.records.events import TrustedSilence
from gpuyard.verification.solver_jobs import SolverJobs
from gpuyard.verification.trusted_changes import SILENCES_TOLD
from gpuyard.verification.trusted_executor import JobTrustedExecutor
from gpuyard.verification.trusted_places import KEPT_S, finding_of, keep_trusted_free

pytestmark = pytest.mark.anyio
NOW = 1_800_000_000.0
PLACE = "gpu:GPU-1"
OURS = "kept free for the trusted executor own"
T4 = GPUClass.T4


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def before(until: float | None = None, reason: str = "") -> Trust:
    return Trust(
        place=PLACE, score=0.7, quarantined_until=until, reason=reason, updated_at=NOW
    )


def test_a_gpu_is_kept_free_while_other_jobs_keep_it_from_judging() -> None:
    kept = finding_of(before(), "own", NOW, busy=True)
    assert kept == {"score": 0.7, "quarantined_until": NOW + KEPT_S, "reason": OURS}
    again = finding_of(before(NOW + 9, OURS), "own", NOW, busy=True)
    assert again == kept
    free = finding_of(before(NOW + 9, OURS), "own", NOW, busy=False)
    assert free and (free["score"], free["quarantined_until"]) == (0.7, None)
    assert finding_of(before(), "own", NOW, busy=False) is None


def test_to_keep_a_gpu_free_changes_no_quarantine_of_others() -> None:
    for busy in (True, False):
        assert finding_of(before(NOW + 9, "broken"), "own", NOW, busy=busy) is None
    assert finding_of(before(NOW - 9, "broken"), "own", NOW, busy=True)


class Silent:
    """The records of classes whose trusted executors were silent so often."""

    def __init__(self, times: int, *, busy: bool) -> None:
        self._silence = TrustedSilence(times, NOW, "late", busy)

    def trusted_silence(self, cls: Class) -> TrustedSilence | None:
        return self._silence


class Instance:
    """Notes what is recorded, and has no other record; or is `away`."""

    def __init__(self, *, away: bool = False) -> None:
        self.recorded: list[str] = []
        self._away = away

    async def call(self, asked: Call[Any]) -> Sequence[Trust]:
        if self._away:
            raise UnreachableError("No server answers.")
        if asked.method == "PUT":
            self.recorded.append(asked.path)
        return []


def judge(**settings: object) -> tuple[Class, JobTrustedExecutor]:
    found = ExecutorSettings.model_validate({"class": "t4", **settings})
    executor = Executor("own", T4, found)
    return T4, JobTrustedExecutor(executor, cast(SolverJobs, None), lambda: 1.0)


@pytest.mark.parametrize(
    ("settings", "times", "busy", "kept"),
    [
        ({"gpu": "GPU-1"}, SILENCES_TOLD, True, 1),
        ({"gpu": "GPU-1", "place": "local"}, SILENCES_TOLD, True, 1),
        ({"gpu": "GPU-1"}, SILENCES_TOLD - 1, True, 0),
        # It is away: to keep it free helps nobody.
        ({"gpu": "GPU-1"}, SILENCES_TOLD, False, 0),
        # Its place would be every node of the instance.
        ({}, SILENCES_TOLD, True, 0),
    ],
)
async def test_only_a_gpu_by_name_that_is_never_free_is_kept_free(
    settings: dict[str, object], times: int, busy: bool, kept: int
) -> None:
    instance = Instance()
    records = cast(Records, Silent(times, busy=busy))
    client = cast(AsyncClient, instance)
    assert await keep_trusted_free(client, records, [judge(**settings)]) == []
    assert len(instance.recorded) == kept
    assert all("GPU-1" in path for path in instance.recorded)


async def test_an_instance_that_is_away_ends_no_batch() -> None:
    client = cast(AsyncClient, Instance(away=True))
    records = cast(Records, Silent(SILENCES_TOLD, busy=True))
    (fault,) = await keep_trusted_free(client, records, [judge(gpu="GPU-1")])
    assert "No server answers" in fault
