"""The reservations of an instance: adds and removes them, refuses those for which there
are not enough GPUs, and tells when one begins.
"""

from collections.abc import Iterable, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.controller.core import Core
from gpuyard.domain.errors import InvalidInputError, NotFoundError, RefusedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.local_times import in_zone, moment_in
from gpuyard.domain.reservations import (
    Reservation,
    ReservationSpec,
    ReservationState,
    ReservedShare,
)
from gpuyard.ledger.queries import Row
from gpuyard.scheduler.advance import AdvanceReservation
from gpuyard.scheduler.advance_gpus import choose
from gpuyard.scheduler.nodes import REMOVED, Node
from gpuyard.scheduler.view import View


class ReservationBook:
    """All reservations, as an extension of the controller."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._rows: dict[str, dict[str, Any]] = {}

    # --- the extension ---

    def start(self) -> None:
        """Read them."""
        self.reload()

    def reload(self) -> None:
        """Read them again."""
        rows = self._core.queries.reservations()
        self._rows = {row["id"]: dict(row) for row in rows}

    def before_deciding(self) -> None:
        """Tell of those that have begun. The decision itself is woken when one does."""
        if self._core.view.advance.coming:
            self._tell_of_begun()

    @property
    def idle(self) -> bool:
        """Always: a server that starts later reads them."""
        return True

    async def close(self) -> None:
        """Nothing: it has no tasks."""

    # --- what people ask for ---

    def listing(self, *, ended: bool = False) -> list[Reservation]:
        """Those that have not ended, the first to begin first; all with `ended`."""
        now = self._core.clock()
        rows = sorted(
            self._rows.values(), key=lambda row: (row["begins_at"], row["id"])
        )
        return [self._shown(row) for row in rows if ended or now < row["ends_at"]]

    def find(self, reference: str) -> Reservation:
        """The reservation of this id, or of the only id that ends so; NotFoundError."""
        found = [row for key, row in self._rows.items() if key.endswith(reference)]
        if len(found) != 1:
            problem = "There is no" if not found else "There are several"
            plural = "s with ids that end in" if found else ""
            raise NotFoundError(
                f"{problem} reservation{plural} {reference}.",
                "`gpuyard reservations list` lists all.",
            )
        return self._shown(found[0])

    async def add(self, spec: ReservationSpec, by: str | None) -> Reservation:
        """Add a reservation; InvalidInputError, or RefusedError if it conflicts."""
        now = self._core.clock()
        zone = ZoneInfo(spec.timezone)
        begins_at = moment_in("begins", spec.begins, zone, now)
        ends_at = moment_in("ends", spec.ends, zone, now)
        if ends_at <= max(begins_at, now):
            what = "now" if ends_at > begins_at else "it begins"
            raise InvalidInputError.of(
                "ends", f"{spec.ends} is not after {what}", "give a later time"
            )
        reservation_id = new_id("reservation")
        row: dict[str, Any] = {
            "project": spec.project,
            "owner": spec.user,
            "gpus": spec.gpus,
            "gpu_class": spec.gpu_class,
            "node": spec.node,
            "begins_at": begins_at,
            "ends_at": ends_at,
            "timezone": spec.timezone,
            "created_at": now,
            "created_by": by,
            "told": 0,
        }
        refuse_conflict(self._core.view, live_reservation(reservation_id, row), zone)
        self._rows[reservation_id] = {"id": reservation_id, **row}
        change = Change(Table.RESERVATIONS, reservation_id, row)
        info = {"reservation": reservation_id, **_facts(row)}
        self._core.emit(
            [Event(EventKind.RESERVATION_ADDED, now, (change,), None, info)]
        )
        await self._core.committed()
        self._core.schedule()
        self.before_deciding()
        return self.find(reservation_id)

    async def remove(self, reference: str) -> Reservation:
        """Remove a reservation; what it was. What runs on its GPUs runs on."""
        before = self.find(reference)
        change = Change(Table.RESERVATIONS, before.id, None)
        info = {"reservation": before.id, **_facts(self._rows[before.id])}
        now = self._core.clock()
        del self._rows[before.id]
        event = Event(EventKind.RESERVATION_REMOVED, now, (change,), None, info)
        self._core.emit([event])
        await self._core.committed()
        self._core.schedule_soon()
        return before

    # --- what it has ---

    def _tell_of_begun(self) -> None:
        view = self._core.view
        now = self._core.clock()
        if view.advance.outdated:
            return  # the next decision gives it its GPUs
        for booked in view.advance.current(now):
            row = self._rows.get(booked.id)
            if row is None or row["told"]:
                continue
            row["told"] = 1
            problem = _problem(view, booked, now)
            kind = (
                EventKind.RESERVATION_SHORT if problem else EventKind.RESERVATION_BEGAN
            )
            info = {"reservation": booked.id, **_facts(row)}
            if problem:
                info["problem"] = problem
            values = {key: value for key, value in row.items() if key != "id"}
            change = Change(Table.RESERVATIONS, booked.id, values)
            self._core.emit([Event(kind, now, (change,), None, info)])

    def _shown(self, row: Row) -> Reservation:
        now = self._core.clock()
        view = self._core.view
        state = ReservationState.COMING
        if row["begins_at"] <= now:
            state = ReservationState.CURRENT
        if row["ends_at"] <= now:
            state = ReservationState.OVER
        booked = view.advance.by_id.get(row["id"])
        is_live = booked is not None and state is not ReservationState.OVER
        shares = booked.shares if booked is not None and is_live else {}
        return Reservation(
            id=row["id"],
            state=state,
            project=row["project"],
            user=row["owner"],
            gpus=row["gpus"],
            gpu_class=row["gpu_class"],
            node=row["node"],
            begins_at=row["begins_at"],
            ends_at=row["ends_at"],
            timezone=row["timezone"],
            created_at=row["created_at"],
            created_by=row["created_by"],
            shares=[
                ReservedShare(
                    node=view.node(node_id).title, gpu_uuids=list(share.gpu_uuids)
                )
                for node_id, share in sorted(shares.items())
            ],
            problem=_problem(view, booked, now) if booked and is_live else "",
        )


def live_reservation(reservation_id: str, row: Row) -> AdvanceReservation:
    """What the scheduler knows of a reservation."""
    return AdvanceReservation(
        reservation_id,
        row["begins_at"],
        row["ends_at"],
        row["project"],
        row["owner"],
        row["gpus"],
        row["gpu_class"] or "",
        row["node"] or "",
    )


def _facts(row: Row) -> dict[str, Any]:
    """What an event says of it."""
    names = ("project", "gpus", "gpu_class", "node", "begins_at", "ends_at", "timezone")
    facts = {name: row[name] for name in names if row[name] is not None}
    return facts if row["owner"] is None else {"user": row["owner"], **facts}


# --- conflicts ---


def refuse_conflict(view: View, wanted: AdvanceReservation, zone: ZoneInfo) -> None:
    """RefusedError if there are not enough GPUs for it beside the others. It names
    these, and the next time that is free in `zone`.
    """
    nodes = [node for node in view.nodes.values() if node.state != REMOVED]
    others = [one for one in view.advance.by_id.values() if one.overlaps(wanted)]
    if _all_fit(nodes, others, wanted):
        return
    alone = choose(nodes, [wanted])[wanted.id]
    if alone.lacking:
        raise _too_many(wanted, wanted.gpus, alone.lacking)
    named = "; ".join(_named(one, zone) for one in others)
    remedy = _free_time(view, nodes, wanted, zone)
    raise RefusedError(
        f"{_what(wanted)} cannot be reserved from {in_zone(wanted.begins_at, zone)} to"
        f" {in_zone(wanted.ends_at, zone)}, because of {named}.",
        " ".join([*_fewer(nodes, others, wanted), remedy]),
    )


def _all_fit(
    nodes: Sequence[Node],
    others: Iterable[AdvanceReservation],
    wanted: AdvanceReservation,
) -> bool:
    """True if it gets all, and takes nothing from another."""
    beside = list(others)
    before = choose(nodes, beside)
    after = choose(nodes, [*beside, wanted])
    if after[wanted.id].lacking:
        return False
    return all(after[one.id].lacking <= before[one.id].lacking for one in beside)


def _too_many(
    wanted: AdvanceReservation, gpus: int | None, lacking: int
) -> RefusedError:
    if gpus is None:
        fault = f"There is no node {wanted.node}."
        return RefusedError(fault, "`gpuyard nodes` lists them.")
    where = f" on node {wanted.node}" if wanted.node else ""
    kind = f" of class {wanted.gpu_class}" if wanted.gpu_class else ""
    fault = f"There are {gpus - lacking} GPUs{kind}{where} in all, and not {gpus}."
    return RefusedError(fault, "Ask for less.")


def _what(wanted: AdvanceReservation) -> str:
    if wanted.gpus is None:
        return f"Node {wanted.node}"
    kind = f" of class {wanted.gpu_class}" if wanted.gpu_class else ""
    where = f" on node {wanted.node}" if wanted.node else ""
    return f"{wanted.gpus} GPU{'' if wanted.gpus == 1 else 's'}{kind}{where}"


def _named(one: AdvanceReservation, zone: ZoneInfo) -> str:
    whose = f"project {one.project}" if one.project else f"user {one.user}"
    what = _what(one)
    return (
        f"{one.id} ({what[0].lower()}{what[1:]} for {whose} from"
        f" {in_zone(one.begins_at, zone)} to {in_zone(one.ends_at, zone)})"
    )


def _moved(wanted: AdvanceReservation, begins_at: float) -> AdvanceReservation:
    lasts_s = wanted.ends_at - wanted.begins_at
    return AdvanceReservation(
        wanted.id,
        begins_at,
        begins_at + lasts_s,
        wanted.project,
        wanted.user,
        wanted.gpus,
        wanted.gpu_class,
        wanted.node,
    )


def _free_time(
    view: View, nodes: Sequence[Node], wanted: AdvanceReservation, zone: ZoneInfo
) -> str:
    """From when on it is free for as long: when one of the others has ended."""
    every = view.advance.by_id.values()
    ends = sorted({one.ends_at for one in every if one.ends_at > wanted.begins_at})
    for begins_at in ends:
        later = _moved(wanted, begins_at)
        beside = [one for one in every if one.overlaps(later)]
        if _all_fit(nodes, beside, later):
            return f"It is free for as long from {in_zone(begins_at, zone)}."
    return "Remove one of these first."


def _fewer(
    nodes: Sequence[Node],
    others: Sequence[AdvanceReservation],
    wanted: AdvanceReservation,
) -> list[str]:
    """How many GPUs are free in the time that was asked for."""
    for gpus in range((wanted.gpus or 1) - 1, 0, -1):
        less = _moved(wanted, wanted.begins_at)
        less.gpus = gpus
        if _all_fit(nodes, others, less):
            return [f"{gpus} {'is' if gpus == 1 else 'are'} free then."]
    return ["None is free then."] if wanted.gpus else []


def _problem(view: View, booked: AdvanceReservation, now: float) -> str:
    """What it lacks, for people: GPUs that are not there, and those that are in use for
    others after its begin.
    """
    problems: list[str] = []
    have = len(booked.uuids())
    if booked.gpus is not None and have < booked.gpus:
        problems.append(f"it has {have} of its {booked.gpus} GPUs")
    if booked.gpus is None and not booked.shares:
        problems.append(f"node {booked.node} is not online")
    if booked.has_begun(now):
        jobs = sorted(_in_the_way(view, booked))
        if jobs:
            problems.append(f"{', '.join(jobs[:3])} still runs on its GPUs")
    return "; ".join(problems)


def _in_the_way(view: View, booked: AdvanceReservation) -> set[str]:
    """The jobs of others there that may not be preempted."""
    uuids = booked.uuids()
    found: set[str] = set()
    for node_id in booked.shares:
        for holder, share in view.node(node_id).bookings.items():
            attempt = view.attempts.get(holder)
            job = view.jobs.get(attempt.job_id if attempt else holder)
            is_there = not uuids.isdisjoint(share.gpu_uuids)
            if job and is_there and not job.preemptible and not booked.is_held_by(job):
                found.add(job.id)
    return found
