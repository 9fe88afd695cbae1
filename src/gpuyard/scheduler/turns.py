"""Turns: whose job comes next, where shares count.

At each level of the tree, who has used least for each of their shares comes first: a
project among all, then a user within it. What a user does outside of projects with
shares stands beside the projects, and is charged for all that the user has used: so
nobody gets a second share by working both in a project and outside of it. Within a
line, priority and age count.
"""

import heapq
from collections.abc import Iterable, Iterator

from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import Line
from gpuyard.scheduler.queue import Queue
from gpuyard.scheduler.usage import Usage
from gpuyard.scheduler.view import View

LEAST_RATE = 0.001
"""A job that books nothing, such as a prompt, counts as so many GPUs in its turn; so
those of different users take turns, too.
"""
Group = tuple[str, ...]
"""A project, or the line of a user's work outside of projects."""
_Entry = tuple[float, str, Line]
"""Usage for each share, id of the first job, line."""


def group_of(line: Line) -> Group:
    """The group of the line."""
    project, _ = line
    return (project,) if project else line


class Turns:
    """Lines in the order in which they get the next place. `charge` counts a place at
    once, so one line does not get all.
    """

    def __init__(self, usage: Usage, firsts: Iterable[tuple[Line, str]], now: float):
        """`firsts`: each line, with the id of its first job, which breaks ties."""
        self._usage = usage
        self._summed, self._ahead = usage.scales(now)
        self._values: dict[Line | Group, float] = {}
        self._lines: dict[Group, list[_Entry]] = {}
        first_of: dict[Group, str] = {}
        for line, first in firsts:
            of_group, own = usage.values(line, self._summed, self._ahead)
            group = group_of(line)
            if group not in self._lines:
                self._lines[group] = []
                self._values[group] = of_group
                first_of[group] = first
            first_of[group] = min(first, first_of[group])
            if group != line:
                self._values[line] = own
            self._lines[group].append((own, first, line))
        self._groups = [
            (self._values[group], first, group) for group, first in first_of.items()
        ]
        heapq.heapify(self._groups)
        for lines in self._lines.values():
            heapq.heapify(lines)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def next(self) -> Line | None:
        """The line whose turn it is; None if all have been dropped."""
        if not self._groups:
            return None
        group = self._first_group()
        lines = self._lines[group]
        while True:
            value, first, line = lines[0]
            # A value only grows, so an entry that is up to date is the least.
            current = value if line == group else self._values[line]
            if value >= current:
                return line
            heapq.heapreplace(lines, (current, first, line))

    def _first_group(self) -> Group:
        while True:
            value, first, group = self._groups[0]
            current = self._values[group]
            if value >= current:
                return group
            heapq.heapreplace(self._groups, (current, first, group))

    def first(self, most: int) -> list[Line]:
        """The first so many lines in turn."""
        found: list[Line] = []
        for _, _, group in heapq.nsmallest(most, self._groups):
            found += [line for _, _, line in sorted(self._lines[group])]
            if len(found) >= most:
                break
        return found[:most]

    def drop(self) -> None:
        """The line that `next` has given takes no more turns."""
        group = self._groups[0][-1]
        heapq.heappop(self._lines[group])
        if not self._lines[group]:
            heapq.heappop(self._groups)

    def charge(self, line: Line, rate: float) -> None:
        """The line has got a place that counts as so many GPUs."""
        project, user = line
        rules = self._usage.rules
        own = "", user
        inflated = rate * self._ahead
        if project:
            self._values[line] += inflated / rules.within_group(line)
            self._values[(project,)] += inflated / rules.of_group(line)
        if own in self._values:
            self._values[own] += inflated / rules.of_group(own)

    def charge_for(self, view: View, job: LiveJob) -> None:
        """The job's line has got a place for it."""
        self.charge(job.party.line, expected_rate(view, job))


def turns(view: View, now: float) -> Turns:
    """All lines of the queue in turn."""
    lines = view.queue.lines.items()
    firsts = [(line, ranked[0][0][-1]) for line, ranked in lines if ranked]
    return Turns(view.usage, firsts, now)


def expected_rate(view: View, job: LiveJob) -> float:
    """How many GPUs a job that has no place yet will count as, if it gets GPUs of the
    mean weight.
    """
    shape = job.shape
    capacity = view.usage.capacity(view.nodes)
    amounts = shape.gpus, shape.cpus, shape.memory_gb
    rate = capacity.rate(*(amount * shape.nodes for amount in amounts))
    return max(rate, LEAST_RATE)


def heads_in_turn(view: View, now: float) -> Iterator[LiveJob]:
    """The first job of each line that no quota holds back, in turn."""
    order = turns(view, now)
    while (line := order.next()) is not None:
        order.drop()
        head = first_allowed(view.queue, view.usage, line)
        if head is not None:
            yield head


def first_allowed(queue: Queue, usage: Usage, line: Line) -> LiveJob | None:
    """The first job of the line that no quota holds back."""
    for _, bucket in queue.lines.get(line, ()):
        head = queue.head(bucket)
        if head is not None and usage.allows(head):
            return head
    return None
