"""How many tasks of an array may run at once: set when it is submitted, and changed by
its owner.
"""

import sys

from gpuyard.domain.states import JobState
from gpuyard.scheduler.actions import Start
from gpuyard.scheduler.arrays import LiveArray
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.view import View


def limit_array(
    view: View, array_id: str, at_most: int | None, expected: int = 0
) -> None:
    """From now on, at most so many tasks of the array may be in the queue or have an
    attempt; None: any number. `expected`: it is new and has so many tasks, none of
    which is in the view yet.
    """
    view.revision += 1
    array = view.arrays.get(array_id)
    if at_most is None:
        if array is not None:
            _free(view, array_id, array)
        return
    if array is None:
        array = LiveArray(at_most, expected)
        if not expected:
            _gather_tasks(view, array_id, array)
        view.arrays[sys.intern(array_id)] = array
    array.at_most = at_most
    _send_back_excess(view, array)
    view.admit_more(array)


def _free(view: View, array_id: str, array: LiveArray) -> None:
    del view.arrays[array_id]
    for _, job_id in array.waiting:
        view.enqueue(view.jobs[job_id])


def _gather_tasks(view: View, array_id: str, array: LiveArray) -> None:
    """Admit the live tasks of an array that had no limit before."""
    for job in view.jobs.values():
        if job.array_id == array_id:
            array.join()
            if _has_turn(view, job):
                array.admitted.add(job.id)


def _has_turn(view: View, job: LiveJob) -> bool:
    """Whether it is in the queue or waits for a budget, or is on its way, or has an
    attempt.
    """
    if job.state is not JobState.QUEUED or job.id in view.queue:
        return True
    if view.budgets.is_waiting(job.id):
        return True
    return isinstance(view.tentative.get(job.id), Start)


def _send_back_excess(view: View, array: LiveArray) -> None:
    """Take those out of the queue that are too many, the last first; what has an
    attempt keeps it.
    """
    excess = len(array.admitted) - array.at_most
    if excess <= 0:
        return
    queued = [view.jobs[i] for i in array.admitted if i in view.queue]
    queued.sort(key=lambda job: (-job.priority, job.id))
    for job in queued[-excess:]:
        view.remove_job(job)
        array.send_back(job)
