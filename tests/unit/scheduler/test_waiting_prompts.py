"""However many prompts wait for their model, a decision does no more for them. Its steps
are counted, because its time would depend on the machine.
"""

from collections.abc import Callable

import pytest

from gpuyard.domain.offers import Offer
from gpuyard.domain.states import JobState
from gpuyard.scheduler.external_queues import ExternalQueue
from tests.support.steps import steps_of
from tests.unit.scheduler.world import World

OFFER = Offer("prompts/chat", "prompts", model="chat")
MAX_PENDING = 8
FEW = 50
MANY = 2000


class Busy(World):
    """A node of one GPU that runs a script, another script that waits for it, and so
    many prompts, of which the queue of their model holds some.
    """

    def __init__(self, prompts: int) -> None:
        super().__init__()
        self.node("here", gpus=1)
        queue = ExternalQueue("prompts", MAX_PENDING, offers={OFFER.id: OFFER})
        self.view.add_external_queues({"prompts": queue})
        self.scripts = [self.submit(gpus=1) for _ in range(2)]
        self.prompts = [self.prompt() for _ in range(prompts)]
        for _ in range(MAX_PENDING + 2):
            self.decide(run=False)
        assert len(self.view.queue) == 1 + prompts - MAX_PENDING

    def prompt(self, priority: int = 3) -> str:
        return self.submit(priority, cpus=0, model="chat")

    def has_left_the_queue(self, job_id: str) -> bool:
        return self.view.jobs[job_id].state is JobState.ASSIGNED


def a_script_ends(world: Busy) -> None:
    world.end(world.scripts[0])
    world.decide(run=False)
    assert world.has_left_the_queue(world.scripts[1])


def a_prompt_ends(world: Busy) -> None:
    world.end(world.prompts[0])
    world.decide(run=False)
    assert world.has_left_the_queue(world.prompts[MAX_PENDING])


def a_prompt_comes(world: Busy) -> None:
    world.prompt()
    assert not world.decide(run=False)


def an_urgent_prompt_comes(world: Busy) -> None:
    urgent = world.prompt(priority=5)
    world.decide(run=False)
    assert world.has_left_the_queue(urgent)


@pytest.mark.parametrize(
    "happens", [a_script_ends, a_prompt_ends, a_prompt_comes, an_urgent_prompt_comes]
)
def test_a_decision_takes_no_more_steps_when_many_prompts_wait(
    happens: Callable[[Busy], None],
) -> None:
    few = Busy(FEW)
    many = Busy(MANY)
    steps_with_few = steps_of(lambda: happens(few))
    steps_with_many = steps_of(lambda: happens(many))
    assert steps_with_many == steps_with_few
