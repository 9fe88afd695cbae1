"""How bad it gets: each seed draws its own mixture of faults, some of them none at all
("swarm testing").
"""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Weather:
    """Rates of faults.

    `…_kill` are chances per round of the event loop, others per commit, reply or
    second.
    """

    storm_s: float
    server_kill: float
    agent_kill: float
    disk_fails: float
    commit_unclear: float
    reply_lost: float
    misfortunes_per_s: float
    misfortunes: tuple[str, ...]
    link_s: float
    thread_s: float
    machines: int
    requests: int


MISFORTUNES = (
    "cut",
    "cut",
    "stall",
    "keeper",
    "everything",
    "reboot",
    "clock",
    "gpu",
    "disk",
    "server",
    "agent",
    "stop",
    "stop server",
)


def draw(dice: Random) -> Weather:
    """The weather of a seed."""

    def some(*choices: float) -> float:
        return dice.choice((0.0, 0.0, *choices))

    return Weather(
        storm_s=dice.choice((10.0, 30.0)),
        server_kill=some(0.0003, 0.002, 0.006),
        agent_kill=some(0.0003, 0.002),
        disk_fails=some(0.02, 0.15),
        commit_unclear=some(0.02, 0.1),
        reply_lost=some(0.05, 0.4),
        misfortunes_per_s=some(0.1, 0.3, 1.0),
        misfortunes=tuple(dice.sample(MISFORTUNES, dice.randint(1, len(MISFORTUNES)))),
        link_s=dice.choice((0.001, 0.05, 0.5)),
        thread_s=dice.choice((0.001, 0.02, 0.3)),
        machines=dice.choice((1, 1, 2)),
        requests=dice.choice((4, 8, 16)),
    )
