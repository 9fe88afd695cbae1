"""Fair order: whose job comes next, where shares count.

At each level of the tree, who has used least for each of their shares comes first: an
organisation among all, then a project within it, then a user within that. A project
that is in no organisation stands beside the organisations. What a user does outside of
projects with shares stands there, too, and is charged for all that the user has used:
so nobody gets a second share by working both in a project and outside of it. Within a
line, priority and age count.
"""

import heapq
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from typing import TypeVar

from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import Group, Root, ShareKey, group_of
from gpuyard.scheduler.queue import Queue
from gpuyard.scheduler.usage import Usage
from gpuyard.scheduler.view import View

LEAST_RATE = 0.001
"""A job that books nothing, such as a prompt, counts as so many GPUs in its turn; so
those of different users take turns, too.
"""
_Entry = tuple[float, str, ShareKey]
"""Usage for each share, id of the first job, line."""
_GroupEntry = tuple[float, int, Group]
"""Usage for each share, place among all groups, group."""

_Member = TypeVar("_Member", Root, Group)


class FairOrder:
    """Lines in the order in which they get the next place. `charge` counts a place at
    once, so one line does not get all.
    """

    def __init__(
        self,
        usage: Usage,
        groups: Mapping[Group, Collection[ShareKey]],
        first_of: Callable[[ShareKey], str],
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
        self._values: dict[Root, float] = {}
        self._of_lines: dict[ShareKey, float] = {}
        # Of most groups, the lines are never looked at.
        self._lines: dict[Group, list[_Entry]] = {}
        # The groups of each organisation, as heaps.
        self._members: dict[str, list[_GroupEntry]] = {}
        self._roots: list[tuple[float, int, Root]] = []
        for place, group in enumerate(groups):
            self._add(place, group)
        heapq.heapify(self._roots)
        for members in self._members.values():
            heapq.heapify(members)

    def _add(self, place: int, group: Group) -> None:
        """The group takes turns."""
        usage = self._usage
        value = self._values[group] = usage.value_of_group(group, self._scales)
        organisation = usage.rules.organisation_of(group[0])
        if not organisation:
            self._roots.append((value, place, group))
            return
        if organisation not in self._members:
            whole = usage.value_of_organisation(organisation, self._scales)
            self._values[organisation] = whole
            self._members[organisation] = []
            self._roots.append((whole, place, organisation))
        self._members[organisation].append((value, place, group))

    def next(self) -> ShareKey | None:
        """The line whose turn it is; None if all have been dropped."""
        if not self._roots:
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
        root = self._first_of_heap(self._roots)
        if isinstance(root, str):
            return self._first_of_heap(self._members[root])
        return root

    def _first_of_heap(self, heap: list[tuple[float, int, _Member]]) -> _Member:
        while True:
            value, place, member = heap[0]
            current = self._values[member]
            if value >= current:
                return member
            heapq.heapreplace(heap, (current, place, member))

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

    def first(self, most: int) -> list[ShareKey]:
        """The first so many lines in turn."""
        found: list[ShareKey] = []
        for _, _, root in heapq.nsmallest(most, self._roots):
            for group in self._groups_in(root):
                found += [line for _, _, line in sorted(self._lines_of(group))]
            if len(found) >= most:
                break
        return found[:most]

    def _groups_in(self, root: Root) -> list[Group]:
        """The groups of an organisation in turn, or the one group."""
        if isinstance(root, str):
            return [group for _, _, group in sorted(self._members[root])]
        return [root]

    def drop(self) -> None:
        """The line that `next` has given takes no more turns."""
        group = self._first_group()
        heapq.heappop(self._lines[group])
        if self._lines[group]:
            return
        root = self._roots[0][-1]
        if isinstance(root, str):
            heapq.heappop(self._members[root])
        if not isinstance(root, str) or not self._members[root]:
            heapq.heappop(self._roots)

    def keep_only(self, groups: Container[Group]) -> None:
        """The lines of all other groups take no more turns."""
        for organisation, members in self._members.items():
            kept = [each for each in members if each[-1] in groups]
            heapq.heapify(kept)
            self._members[organisation] = kept
        self._roots = [each for each in self._roots if self._is_among(each[-1], groups)]
        heapq.heapify(self._roots)

    def _is_among(self, root: Root, groups: Container[Group]) -> bool:
        if isinstance(root, str):
            return bool(self._members[root])
        return root in groups

    def charge(self, line: ShareKey, rate: float) -> None:
        """The line has got a place that counts as so many GPUs."""
        project, user = line
        rules = self._usage.rules
        ahead = rate * self._scales.ahead
        if project:
            self._of_lines[line] += ahead / rules.within_group(line)
            self._values[group_of(line)] += ahead / rules.of_group(line)
        organisation = rules.organisation_of(project)
        if organisation in self._members:
            self._values[organisation] += ahead / rules.of_organisation(organisation)
        outside = "", user
        if outside in self._values:
            self._values[outside] += ahead / rules.of_group(outside)

    def charge_for(self, view: View, job: LiveJob) -> None:
        """The job's line has got a place for it."""
        self.charge(job.party.line, expected_rate(view, job))


def fair_order(view: View, now: float) -> FairOrder:
    """All lines of the queue in turn."""
    queue = view.queue
    return FairOrder(view.usage, queue.groups, queue.first_of, now)


def expected_rate(view: View, job: LiveJob) -> float:
    """How many GPUs a job counts as that has no place yet."""
    capacity = view.usage.capacity(view.nodes)
    return max(capacity.rate_of_shape(job.shape), LEAST_RATE)


def heads_in_turn(view: View, now: float) -> Iterator[LiveJob]:
    """The first job of each line that no quota holds back, in turn."""
    order = fair_order(view, now)
    while (line := order.next()) is not None:
        order.drop()
        head = first_allowed(view.queue, view.usage, line)
        if head is not None:
            yield head


def first_allowed(queue: Queue, usage: Usage, line: ShareKey) -> LiveJob | None:
    """The first job of the line that no quota holds back."""
    for _, bucket in queue.lines.get(line, ()):
        head = queue.head(bucket)
        if head is not None and usage.allows(head):
            return head
    return None
