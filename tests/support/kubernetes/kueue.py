"""Kueue in small: Jobs of a queue wait, suspended, until its quota has room for
them.
"""

from tests.support.kubernetes import demand
from tests.support.kubernetes.admission import QUEUE
from tests.support.kubernetes.controller import Controller
from tests.support.kubernetes.events import Recorder
from tests.support.kubernetes.nodes import GPU
from tests.support.kubernetes.objects import Object, deleting, holds, labels, uid
from tests.support.kubernetes.options import Options
from tests.support.kubernetes.store import Store


class Kueue(Controller):
    """Admits the oldest first; a queue that is not known admits nothing."""

    def __init__(self, store: Store, options: Options) -> None:
        super().__init__(store)
        self._quota = options.kueue
        self._recorder = Recorder(store, "kueue-admission")
        self._admitted: set[str] = set()
        self._told: dict[str, str] = {}

    def reconcile(self) -> float | None:
        jobs = [
            job
            for job in self.store.by_age("jobs")
            if QUEUE in labels(job) and self._quota
        ]
        for queue, quota in self._quota.items():
            mine = [
                job for job in jobs if labels(job)[QUEUE] == queue and not _over(job)
            ]
            used = sum(_gpus(job) for job in mine if uid(job) in self._admitted)
            for job in mine:
                if uid(job) not in self._admitted and used + _gpus(job) <= quota:
                    used += _gpus(job)
                    self._admit(job, queue)
                elif uid(job) not in self._admitted:
                    more = used + _gpus(job) - quota
                    self._tell(
                        job,
                        "couldn't assign flavors to pod set main: insufficient unused"
                        f" quota for {GPU} in flavor default-flavor, {more} more"
                        " needed",
                    )
        for job in jobs:
            if labels(job)[QUEUE] not in self._quota and not _over(job):
                self._tell(job, f"LocalQueue {labels(job)[QUEUE]} doesn't exist")
        return None

    def _admit(self, job: Object, queue: str) -> None:
        self._admitted.add(uid(job))
        with self.store.edit("jobs", job) as draft:
            draft["spec"]["suspend"] = False
        self._recorder.normal(job, "Started", f"Admitted by clusterQueue {queue}")

    def _tell(self, job: Object, message: str) -> None:
        if self._told.get(uid(job)) != message:
            self._told[uid(job)] = message
            self._recorder.warning(job, "Pending", message[0].upper() + message[1:])


def _over(job: Object) -> bool:
    return holds(job, "Complete") or holds(job, "Failed") or deleting(job)


def _gpus(job: Object) -> int:
    each = demand.requests(job["spec"]["template"]).get(GPU, 0)
    return int(
        each
        * min(
            job["spec"]["parallelism"],
            job["spec"].get("completions") or job["spec"]["parallelism"],
        )
    )
