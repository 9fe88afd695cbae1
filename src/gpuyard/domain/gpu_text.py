"""GPUs as people write them: `8`, `A100`, `A100:8`, `8xA100`, `80GB`, `4x80GB`.

Standard library only.
"""

import re

_COUNT = re.compile(r"\d+")
_COUNT_FIRST = re.compile(r"(\d+)\s*[x×*]\s*(\S.*)")
_COUNT_LAST = re.compile(r"(.*\S)\s*:\s*(\d+)")


def gpus_of(text: str) -> dict[str, int | str]:
    """The fields of a GpuRequest that the text says; what they hold is not checked."""
    text = text.strip()
    if _COUNT.fullmatch(text):
        return {"count": int(text)}
    if first := _COUNT_FIRST.fullmatch(text):
        return _kind(first[2]) | {"count": int(first[1])}
    if last := _COUNT_LAST.fullmatch(text):
        return _kind(last[1]) | {"count": int(last[2])}
    return _kind(text) | {"count": 1}


def _kind(text: str) -> dict[str, int | str]:
    """A size such as `80GB`, or the name of a class."""
    return {"memory_gb" if text[:1].isdigit() else "gpu_class": text}
