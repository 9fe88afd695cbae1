"""What a node says when it opens no stream."""

import pytest

from gpuyard.domain import wire
from gpuyard.providers.node_streams import _refusal


@pytest.mark.parametrize("closed_port", [True, False])
def test_the_words_of_a_node_control_no_terminal(closed_port: bool) -> None:
    problem = "no\x1b[2J\nsuch\x07 port" + "x" * 1000
    refused = _refusal(wire.JoinStream("key", problem, closed_port=closed_port))
    assert str(refused).isprintable()
    assert "no[2Jsuch port" in str(refused)
    assert len(str(refused)) < 500
