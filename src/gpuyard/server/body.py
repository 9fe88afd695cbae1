"""The body of a submission, taken apart before it becomes objects.

The edge limits how long it may be (bodies.py).
"""

import msgspec
from fastapi import Request

from gpuyard.controller.intake import reading_json
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.spec_values import MAX_SPEC_BYTES

_list = msgspec.json.Decoder(list[msgspec.Raw])


async def read_bodies(request: Request) -> tuple[list[msgspec.Raw], bool]:
    """The JSON of each job in a request, and whether they came as a list;
    InvalidInputError when one is too large.
    """
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
    if not raw.lstrip().startswith(b"["):
        _refuse_large("(body)", len(raw))
        return [msgspec.Raw(raw)], False
    with reading_json():
        bodies = _list.decode(raw)
    if len(raw) > MAX_SPEC_BYTES:
        for position, body in enumerate(bodies):
            _refuse_large(str(position), memoryview(body).nbytes)
    return bodies, True


def _refuse_large(field: str, size: int) -> None:
    if size > MAX_SPEC_BYTES:
        fault = f"is {size / 1e6:.1f} MB; a spec may have {MAX_SPEC_BYTES / 1e6:.0f} MB"
        raise InvalidInputError.of(
            field,
            fault,
            "put large data into files and name them in args; ask a model a long prompt"
            " by /v1 or `gpuyard llm`",
        )
