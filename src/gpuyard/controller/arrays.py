"""Arrays: one job with many tasks. A task is a job like any other; only its spec is
that of its array.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpuyard.controller.access import ALL_RIGHTS, Rights
from gpuyard.controller.admission import Admission, are_equal
from gpuyard.controller.array_events import ArraySubmission, PreparedArray
from gpuyard.controller.core import FOLDED_AT_ONCE, Core
from gpuyard.controller.intake import reading_json
from gpuyard.controller.parents import refuse_too_many
from gpuyard.controller.shares import refuse_over_quota
from gpuyard.domain.arrays import (
    ArrayRange,
    array_range,
    refuse_unsuitable,
    task_words,
)
from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.domain.idempotency_keys import given_key, owned_key
from gpuyard.domain.ids import new_id


class Arrays:
    """Takes arrays into the queue."""

    def __init__(self, core: Core, admission: Admission) -> None:
        self._core = core
        self._admission = admission
        self._queue_lock = asyncio.Lock()

    async def create(
        self, document: Any, user: str | None = None, rights: Rights = ALL_RIGHTS
    ) -> str:
        """Queue an array given as JSON: the fields of a JobSpec, and `array`. Returns
        its id after the commit. `user` is who submits it, if that is known, and has
        these `rights`.

        For an idempotency key that was used before it is the first array with that key.
        """
        array, command = await self._prepare(document, user, rights)
        if self._earlier(array) is None:
            await self._admission.check_shared(array.job, command)
        async with self._queue_lock:
            # A request with the same key may have been broken off before its commit.
            await self._core.committed()
            earlier = self._earlier(array)
            if earlier is not None:
                return earlier
            await self._admission.check_workspaces([array.job])
            await self._queue(array)
        return array.id

    async def _prepare(
        self, document: Any, user: str | None, rights: Rights
    ) -> tuple[PreparedArray, Sequence[str]]:
        """The array, and the command of its first task."""
        (fields, wanted, key) = _taken_apart(document)
        raw = msgspec.Raw(msgspec.json.encode(fields))
        (job, words) = await self._admission.read_shared(raw, user, rights)
        refuse_unsuitable(job.spec())
        refuse_too_many(len(job.parents) * len(wanted.indices))
        array_id = new_id("array")
        task_ids = [new_id("job") for _ in wanted.indices]
        owned = None if key is None else owned_key(key, user)
        array = PreparedArray(array_id, owned, job, wanted, task_ids)
        return array, task_words(words, wanted.indices[0])

    def _earlier(self, array: PreparedArray) -> str | None:
        """The array that an earlier request made with the same key; RefusedError if
        that is another one.
        """
        if array.key is None:
            return None
        queries = self._core.queries
        user = array.job.template.user
        row = queries.array_by_key(array.key)
        # Those of users from earlier versions stand there as they were given.
        row = row or queries.array_by_key(given_key(array.key))
        spec = queries.specs([row["id"]]).get(row["id"], {}) if row else {}
        if row is None or spec.get("user") != user:
            return None
        has_same_tasks = (row["tasks"], row["at_most"]) == (
            array.range.text,
            array.range.at_most,
        )
        if not has_same_tasks or not are_equal(spec, array.job.spec()):
            raise RefusedError(
                f"idempotency_key {given_key(array.key)!r} was used for another array"
                f" ({row['id']}).",
                "Use a new key.",
            )
        return str(row["id"])

    async def _queue(self, array: PreparedArray) -> None:
        """Give the array to the ledger and to the view; returns after the commit."""
        core = self._core
        core.refuse_when_full()
        parents = set(array.job.parents)
        while not core.add_ended_parents(parents):
            await core.committed()  # the end of a parent is not committed yet
        events = ArraySubmission(array, core.clock())
        refuse_over_quota(core.view.usage, events)
        if len(events) > FOLDED_AT_ONCE:
            await core.emit_many(events, parents)
        else:
            core.emit(events[:])
        core.schedule()
        await core.committed(own_only=True)


def one_task(body: msgspec.Raw) -> tuple[msgspec.Raw, int | None]:
    """The job of one task, if `body` is an array as JSON, and how many tasks there are;
    any other job as it is, and None. InvalidInputError.
    """
    with reading_json():
        document: Any = msgspec.json.decode(body)
    if not isinstance(document, Mapping) or "array" not in document:
        return body, None
    (fields, wanted, _) = _taken_apart(document)  # pyright: ignore[reportUnknownArgumentType]
    return msgspec.Raw(msgspec.json.encode(fields)), len(wanted.indices)


def _taken_apart(document: Any) -> tuple[dict[str, Any], ArrayRange, str | None]:
    """The fields of its job, its tasks, and its idempotency key; InvalidInputError."""
    if not isinstance(document, Mapping):
        fault = f"is {type(document).__name__}, not an object"
        raise InvalidInputError.of("(body)", fault, "send a JobSpec with array")
    fields: dict[str, Any] = dict(document)  # pyright: ignore[reportUnknownArgumentType]
    if "array" not in fields:
        raise InvalidInputError.of("array", "is missing", "give indices such as 0-9")
    wanted = array_range(fields.pop("array"))
    refuse_unsuitable(fields)
    key = fields.pop("idempotency_key", None)
    if key is not None and not _is_key(key):
        raise InvalidInputError.of(
            "idempotency_key", "is not a name", "give 1 to 200 characters on one line"
        )
    return fields, wanted, key


def _is_key(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200 and "\n" not in value
