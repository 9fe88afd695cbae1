"""Expected waiting: what a move of a GPU saves the tasks of one side, and what it
causes the other.

All results are seconds of waiting, summed over tasks. Queues are treated like water:
requests flow in at the rate that was seen last, and each resident lets them out at the
mean rate of answers.
"""

import math

from gpuyard.residency.fleet import Demand

REQUEST_WEIGHT = 100.0
"""A second for which a request waits counts as so many seconds of a script: somebody
looks at the screen, while scripts wait in a queue.
"""
RATE_ANSWERS = 3
"""The rate of requests is counted over the time that so many answers take: long enough
to tell a burst from a single request, and short enough to see it begin.
"""
HORIZON = 4
"""A rate is expected to last for the time that it takes to load the model and answer a
request, so many times.
"""


def saved_by_load(
    demand: Demand, residents: int, answer_s: float, reload_s: float, now: float
) -> float:
    """The waiting that one more resident would save the requests of a model that has
    some residents. It helps when it is loaded.
    """
    rate = demand.rate(now, RATE_ANSWERS * answer_s)
    horizon_s = HORIZON * (reload_s + answer_s)
    waiting = len(demand.waiting)
    without = _mean_waiting(waiting, rate, answer_s, residents, horizon_s)
    with_it = _mean_waiting(waiting, rate, answer_s, residents + 1, horizon_s)
    return (without - with_it) * (horizon_s - reload_s)


def saved_by_first_load(demand: Demand, reload_s: float, now: float) -> float:
    """The waiting that the first resident saves. Nobody knows how long the requests
    would wait without it: at least as long as they have waited, and no less than a
    load takes.
    """
    return sum(max(now - task.arrived_at, reload_s) for task in demand.waiting)


def caused_to_scripts(lost_s: float, scripts: int, workers: int) -> float:
    """The waiting that is caused to the waiting scripts if a GPU is lost for `lost_s`
    seconds, and `workers` remain. Each script waits longer by its share.
    """
    if not scripts:
        return 0.0
    return lost_s * scripts / workers if workers else math.inf


def _mean_waiting(
    waiting: int, rate: float, answer_s: float, residents: int, span_s: float
) -> float:
    """How many requests wait on average in the next `span_s` seconds."""
    growth = rate - residents / answer_s
    if growth >= 0:
        return waiting + growth * span_s / 2
    lasts_s = min(waiting / -growth, span_s)
    at_end = waiting + growth * lasts_s
    return (waiting + at_end) / 2 * lasts_s / span_s
