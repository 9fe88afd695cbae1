"""The mixed work of a soak, with a witness of its own: each job writes what ran when
into a file.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from gpuyard.domain.errors import GpuyardError
from tests.support.instance import TestInstance

# $1 the file, $2 seconds, $3 exit code of the first try, $4 that of the others
WITNESS = """
echo "began $GPUYARD_ATTEMPT" >>"$1"
[ "$2" = 0 ] || sleep "$2"
[ "$5" ] && echo checkpoint >"$1.ckpt"
echo "ended $GPUYARD_ATTEMPT" >>"$1"
[ "$GPUYARD_ATTEMPT" = 1 ] && exit "$3"
exit "$4"
"""
MOST_WAITING = 200  # jobs
PROJECTS = ("vision", "text")


@dataclass
class Wanted:
    """An acknowledged job: the kind of work it is, and whether somebody asked to cancel
    it, heard or not.
    """

    id: str
    kind: str
    retries: int
    cancelled: bool = False


@dataclass
class Work:
    """Submits until told to stop, hardly more than `most_waiting` unfinished jobs ahead;
    `wanted` by key.
    """

    instance: TestInstance
    dice: Random
    most_waiting: int = MOST_WAITING
    wanted: dict[str, Wanted] = field(default_factory=dict[str, Wanted])
    stop: threading.Event = field(default_factory=threading.Event)
    refused: list[str] = field(default_factory=list[str])

    def run(self) -> None:
        """A thread's work: batches of jobs, now and then a cancel."""
        (self.instance.work / "witness.sh").write_text(WITNESS)
        number = 0
        while not self.stop.is_set():
            batch = {
                f"job-{number + n}": self._body(f"job-{number + n}")
                for n in range(self.dice.choice((1, 5, 20)))
            }
            number += len(batch)
            self._until_taken(batch)
            if self.wanted and self.dice.random() < 0.3:
                self._cancel(self.dice.choice(list(self.wanted.values())[-50:]))
            self._let_them_catch_up()

    def _body(self, key: str) -> dict[str, Any]:
        kind = self.dice.choices(
            ("no-op", "short", "failing", "retried", "checkpoints", "child"),
            (6, 4, 1, 1, 1, 1),
        )[0]
        seconds = "0" if kind == "no-op" else self.dice.choice(("0.05", "0.3", "1"))
        codes = {"failing": ("3", "3"), "retried": ("4", "0")}.get(kind, ("0", "0"))
        command = [
            "sh",
            str(self.instance.work / "witness.sh"),
            str(self.instance.work / key),
            seconds,
            *codes,
        ]
        body = {
            "command": command,
            "name": key,
            "idempotency_key": key,
            "workdir": str(self.instance.work),
            "labels": {"kind": kind},
            "project": PROJECTS[len(key) % 2],
            "retry_count": 10 if kind != "failing" else 0,
        }
        if kind == "checkpoints":
            body |= {
                "command": [*command, "save"],
                "checkpoint": {"path": f"{key}.ckpt"},
            }
        if kind == "child" and self.wanted:
            body |= {
                "depends_on": [self.dice.choice(list(self.wanted.values())[-50:]).id]
            }
        return body

    def _until_taken(self, batch: dict[str, dict[str, Any]]) -> None:
        """Ask until it is acknowledged: the keys make it one batch, however often it is
        sent.
        """
        while not self.stop.is_set():
            try:
                with self.instance.client() as client:
                    jobs = client.submit_many(list(batch.values()))
            except (GpuyardError, OSError, AssertionError) as error:
                if isinstance(error, GpuyardError) and error.status in (409, 422):
                    self.refused.append(str(error))
                    return
                time.sleep(0.1)
                continue
            for body, job in zip(batch.values(), jobs, strict=True):
                key = body["idempotency_key"]
                kind = body["labels"]["kind"]
                self.wanted[key] = Wanted(job.id, kind, body["retry_count"])
            return

    def _cancel(self, wanted: Wanted) -> None:
        with (
            suppress(GpuyardError, OSError, AssertionError),
            self.instance.client() as client,
        ):
            # A server killed before it could answer may have done it.
            wanted.cancelled = True
            client.job(wanted.id).cancel()

    def _let_them_catch_up(self) -> None:
        while not self.stop.is_set() and self.unfinished() > self.most_waiting:
            time.sleep(0.1)

    def unfinished(self) -> int:
        """How many jobs are not over, as the server says; many when it does not say."""
        try:
            with self.instance.client() as client:
                return sum(
                    1
                    for _ in client.jobs(
                        state=["queued", "assigned", "running", "unknown"]
                    )
                )
        except (GpuyardError, OSError, AssertionError):
            return self.most_waiting + 1
