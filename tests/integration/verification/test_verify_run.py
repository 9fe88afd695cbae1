"""A whole run, as far as nobody can be asked."""

from pathlib import Path
from typing import Any, cast

import pytest

from gpuyard.client.aio import AsyncClient
from gpuyard.client.calls import Call
from gpuyard.config.verification import ExecutorSettings, VerificationSettings
from gpuyard.storage.blobs import BlobStore
from gpuyard.verification.clock import SystemClock
from gpuyard.verification.executors import Executor
from gpuyard.verification.hub import Hub
from gpuyard.verification.records import Records
from gpuyard.verification.session import Session, VerificationStore
from gpuyard.verification.solver_jobs import SolverJobs
from gpuyard.verification.trusted_changes import SILENCES_TOLD
from gpuyard.verification.trusted_executor import JobTrustedExecutor
from gpuyard.verification.verify import NotPreparedError, verify
from tests.support.verification import B, LocalTrusted, make_context

pytestmark = pytest.mark.anyio


class Instance:
    """Has one provider, and notes what is recorded about places."""

    def __init__(self) -> None:
        self.recorded: dict[str, dict[str, Any]] = {}

    async def call(self, asked: Call[Any]) -> list[dict[str, Any]]:
        if asked.method == "PUT":
            self.recorded[asked.path] = dict(asked.body or {})
        return [{"name": "local"}] if asked.path.endswith("/providers") else []


class Hurried(SystemClock):
    """Makes no pauses, and has limits all the same."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds if seconds > 1 else 0)


async def test_a_gpu_that_is_too_busy_to_make_prompts_is_kept_free(
    records: Records, blobs: BlobStore, tmp_path: Path
) -> None:
    """Else a class that was never verified would wait for ever."""
    busy = LocalTrusted(B)
    busy.busy = True
    own = ExecutorSettings.model_validate({"class": B, "gpu": "GPU-1"})
    jobs = cast(SolverJobs, None)
    judge = JobTrustedExecutor(Executor("own", B, own), jobs, lambda: 1.0)
    instance = Instance()
    session = Session(
        VerificationStore(VerificationSettings(), tmp_path, records, blobs),
        cast(AsyncClient, instance),
        jobs,
        cast(Hub, None),
        make_context(records, blobs, busy, clock=Hurried()),
        {B: judge},
    )
    rented = Executor("rented", B, ExecutorSettings.model_validate({"class": B}))
    with pytest.raises(NotPreparedError, match="behind job_2"):
        await verify(session, [rented], claims=frozenset(), say=lambda _: None)
    silence = records.trusted_silence(B)
    assert silence and silence.times >= SILENCES_TOLD
    (place,) = instance.recorded
    assert "GPU-1" in place
    assert instance.recorded[place]["reason"].startswith("kept free for the trusted")
