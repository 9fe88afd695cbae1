"""How often an agent tries to reach a server."""

from pathlib import Path

from gpuyard.node.link import FIRST_PAUSE_S, ServerAddress, longer_pause_s

HOME = ServerAddress(Path("/home/agent.sock"))
ELSEWHERE = ServerAddress(Path("/home/agent.sock"), "https://b.example")


def test_pauses_grow_less_where_only_the_own_home_has_a_server():
    pauses: list[tuple[float, float]] = []
    at_home = elsewhere = FIRST_PAUSE_S
    for _ in range(20):
        at_home = longer_pause_s(at_home, [HOME])
        elsewhere = longer_pause_s(elsewhere, [HOME, ELSEWHERE])
        pauses.append((at_home, elsewhere))
    assert pauses[0] == (0.03, 0.03)
    assert pauses[-1] == (0.1, 1.0)
