"""Turns: whose job comes next, where shares count.

At each level of the tree, who has used least for each of their shares comes first: a
project among all, then a user within it. What a user does outside of projects with
shares stands beside the projects, and is charged for all that the user has used: so
nobody gets a second share by working both in a project and outside of it. Within a
line, priority and age count.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping

from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import Group, Line, group_of
from gpuyard.scheduler.queue import Queue
from gpuyard.scheduler.usage import Usage
from gpuyard.scheduler.view import View

LEAST_RATE = 0.001
"""A job that books nothing, such as a prompt, counts as so many GPUs in its turn; so
those of different users take turns, too.
"""
_Entry = tuple[float, str, Line]
"""Usage for each share, id of the first job, line."""


class Turns:
    """Lines in the order in which they get the next place. `charge` counts a place at
    once, so one line does not get all.
    """

    def __init__(
        self,
        usage: Usage,
        groups: Mapping[Group, Collection[Line]],
        first_of: Callable[[Line], str],
        now: float,
    ) -> None:
        """`groups`: all lines with jobs, by group; of equal groups, the one given first
        comes first. `first_of(line)` is the id of its first job, by which equal lines
        are ordered.
        """
        self._usage = usage
        self._given = groups
        self._first_of = first_of
        self._scales = usage.scales(now)
        value_of = usage.value_of_group
        self._of_groups = {group: value_of(group, self._scales) for group in groups}
        self._of_lines: dict[Line, float] = {}
        # Of most groups, the lines are never looked at.
        self._lines: dict[Group, list[_Entry]] = {}
        self._groups = [
            (value, place, group)
            for place, (group, value) in enumerate(self._of_groups.items())
        ]
        heapq.heapify(self._groups)

    def next(self) -> Line | None:
        """The line whose turn it is; None if all have been dropped."""
        if not self._groups:
            return None
        lines = self._lines_of(self._first_group())
        while True:
            value, first, line = lines[0]
            # A value only grows, so an entry that is up to date is the least.
            current = self._of_lines[line]
            if value >= current:
                return line
            heapq.heapreplace(lines, (current, first, line))

    def _first_group(self) -> Group:
        while True:
            value, place, group = self._groups[0]
            current = self._of_groups[group]
            if value >= current:
                return group
            heapq.heapreplace(self._groups, (current, place, group))

    def _lines_of(self, group: Group) -> list[_Entry]:
        """The lines of the group that have not been dropped, as a heap."""
        if group not in self._lines:
            lines = self._given[group]
            for line in lines:
                self._of_lines[line] = self._usage.value_in_group(line, self._scales)
            self._lines[group] = [
                (self._of_lines[line], self._first_of(line), line) for line in lines
            ]
            heapq.heapify(self._lines[group])
        return self._lines[group]

    def first(self, most: int) -> list[Line]:
        """The first so many lines in turn."""
        found: list[Line] = []
        for _, _, group in heapq.nsmallest(most, self._groups):
            found += [line for _, _, line in sorted(self._lines_of(group))]
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
        ahead = rate * self._scales.ahead
        if project:
            self._of_lines[line] += ahead / rules.within_group(line)
            self._of_groups[group_of(line)] += ahead / rules.of_group(line)
        outside = "", user
        if outside in self._of_groups:
            self._of_groups[outside] += ahead / rules.of_group(outside)

    def charge_for(self, view: View, job: LiveJob) -> None:
        """The job's line has got a place for it."""
        self.charge(job.party.line, expected_rate(view, job))


def turns(view: View, now: float) -> Turns:
    """All lines of the queue in turn."""
    queue = view.queue
    return Turns(view.usage, queue.groups, queue.first_of, now)


def expected_rate(view: View, job: LiveJob) -> float:
    """How many GPUs a job counts as that has no place yet."""
    capacity = view.usage.capacity(view.nodes)
    return max(capacity.rate_of_shape(job.shape), LEAST_RATE)


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
