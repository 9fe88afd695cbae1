"""Agents as a server that has just started knows them."""

import pytest

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.connected_agents import ConnectedAgents
from gpuyard.providers.results import AttemptResults


def test_the_address_of_a_node_whose_agent_has_not_come_yet_is_not_known() -> None:
    agents = ConnectedAgents("agent", 2.0, AttemptResults(), lambda _: False)
    with pytest.raises(ProviderError, match="no agent connected") as error:
        agents.address("node_1", ["node_2"])
    assert error.value.error_code == "NOT_CONNECTED"
