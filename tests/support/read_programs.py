"""Reads the needs of small programs."""

import json
from collections.abc import Mapping
from typing import Any

from gpuyard.insight.needs.recommend import recommend, to_json
from gpuyard.insight.needs.sources import Sources


def needs(
    source: str, *arguments: str, others: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The recommendation for a program with other files beside it, as JSON."""
    texts = {**(others or {}), "train.py": source}
    found = to_json(recommend(Sources(texts, "train.py"), arguments))
    json.dumps(found)
    return found
