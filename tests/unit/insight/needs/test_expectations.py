"""The needs of programs in the styles of public training scripts."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli.recommend import recommendation_for

HERE = Path(__file__).parent
_EXPECTED = json.loads((HERE / "expectations.json").read_text())["programs"]


@pytest.mark.parametrize("expected", _EXPECTED, ids=lambda row: " ".join(row[0])[:60])
def test_needs_are_as_expected(expected: Any) -> None:
    (words, tier, millions, gpus) = expected
    found = recommendation_for(words, HERE / "programs")
    assert found["tier"] == tier
    assert found["needs"]["gpus"] == gpus
    if millions is None:
        assert found["parameters"] is None
    else:
        assert found["parameters"] == pytest.approx(millions * 1e6, rel=0.1)
