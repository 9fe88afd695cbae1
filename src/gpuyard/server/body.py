"""The body of a submission, read no further than it may be long and refused before it becomes objects."""

from typing import Any

import msgspec
from fastapi import Request

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import MAX_DEPTH, MAX_SPEC_BYTES

MAX_BODY_BYTES = 64_000_000


async def read_body(request: Request) -> Any:
    """A request's JSON; InvalidInputError when it is none, or when it or one spec in it is too large."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY_BYTES:
            raise InvalidInputError.of("(body)", f"is over {MAX_BODY_BYTES // 1_000_000} MB", "send fewer jobs at once")
    try:
        if len(raw) > MAX_SPEC_BYTES:
            _refuse_large(raw)
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError.of("(body)", f"is not JSON: {error}", "send a JobSpec as a JSON object") from None
    except RecursionError:
        raise InvalidInputError.of("(body)", "is nested too deeply", f"nest at most {MAX_DEPTH} levels") from None


def _refuse_large(raw: bytearray) -> None:
    """Refuse a spec that is too large, alone or in a list; a list of many small ones may be longer."""
    if not raw.lstrip().startswith(b"["):
        sizes = {"(body)": len(raw)}
    else:
        parts = msgspec.json.decode(raw, type=list[msgspec.Raw])
        sizes = {str(position): memoryview(part).nbytes for position, part in enumerate(parts)}
    for field, size in sizes.items():
        if size > MAX_SPEC_BYTES:
            fault = f"is {size / 1e6:.1f} MB; a spec may have {MAX_SPEC_BYTES / 1e6:.0f} MB"
            raise InvalidInputError.of(field, fault, "put large data into files and name them in args")
