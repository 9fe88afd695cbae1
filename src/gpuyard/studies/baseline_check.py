"""Ask a study's endpoint one short question, to see whether it answers."""

import asyncio
import os

from gpuyard.domain.errors import Fault, GpuyardError, InvalidInputError
from gpuyard.studies.completions import OpenAICompletionClient
from gpuyard.studies.study import BaselineSection

_PROMPT = "Say yes."
_WAIT_S = 30.0


def baseline_faults(settings: BaselineSection) -> list[Fault]:
    """Return why the endpoint of a baseline does not answer, if it does not."""
    wait_s = min(settings.timeout_s, _WAIT_S)
    quick = {"max_tokens": 8, "retries": 0, "timeout_s": wait_s}
    try:
        asyncio.run(_ask(settings.model_copy(update=quick)))
    except InvalidInputError as error:
        return list(error.faults)
    except GpuyardError as error:
        fault = f"did not answer: {error}"
        return [Fault("baseline", fault, "correct the section [baseline]")]
    return []


async def _ask(settings: BaselineSection) -> None:
    client = OpenAICompletionClient(settings, os.environ)
    try:
        await client.complete_prompt(_PROMPT)
    finally:
        await client.close()
