"""What every provider promises, shown case by case.

`pytest -k lost_reply` runs one of them.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuyard.providers.conformance import CASES, Case, Subject


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: Case, make: Callable[..., Any]) -> None:
    @asynccontextmanager
    async def subject() -> AsyncGenerator[Subject]:
        provider = make()
        try:
            # REPLACE: `python` is the interpreter where jobs run, `image` what jobs
            # need if they run in containers, `missing_workdir` goes if a job's folder
            # is not reached there, `patience_s` grows with a slow cloud.
            yield Subject(
                provider, missing_workdir={"workdir": "/no/such/folder"}, pause_s=0.05
            )
        finally:
            await provider.close()

    case.run(subject)
