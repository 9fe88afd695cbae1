"""What must hold, whatever happens: watched while the world runs, and checked on the
ledger at its end.
"""

import json
import sqlite3
from collections import Counter, defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gpuyard.domain import wire
from gpuyard.domain.gangs import attempt_and_rank, share_id
from gpuyard.domain.run_time import run_time_s
from gpuyard.domain.states import (
    ATTEMPT_MOVES,
    JOB_MOVES,
    TERMINAL,
    AttemptState,
    JobState,
)
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.prune import history
from gpuyard.ledger.tables import STATE_TABLES, key_column
from tests.simulation.host import Host, Process
from tests.support.ledger import state_of

if TYPE_CHECKING:
    from tests.simulation.people import Wish
    from tests.simulation.world import World


class BrokenPromiseError(AssertionError):
    """The system did what it must never do."""


class Promises:
    """`faults` are the broken ones; the first ends the run."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.faults: list[str] = []
        self._submitted: dict[str, str] = {}
        self._database: sqlite3.Connection | None = None

    def broken(self, what: str) -> None:
        """A promise is broken."""
        self.world.note(f"BROKEN: {what}")
        self.faults.append(what)

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken(what)

    def _row(self, query: str, *values: Any) -> dict[str, Any] | None:
        """A row of what is committed, read as a stranger would."""
        if self._database is None:
            self._database = sqlite3.connect(
                f"file:{self.world.ledger_path}?mode=ro", uri=True
            )
            self._database.row_factory = sqlite3.Row
        found = self._database.execute(query, values).fetchone()
        return dict(found) if found else None

    # --- while it runs ---

    def acknowledged(self, wish: "Wish", job_id: str) -> None:
        """An acknowledged job is in the ledger, once."""
        key = wish.body["idempotency_key"]
        self.expect(wish.id == job_id, f"{key} made two jobs: {wish.id} and {job_id}")
        row = self._row("SELECT idempotency_key FROM jobs WHERE id = ?", job_id)
        self.expect(
            row is not None, f"{job_id} was acknowledged and is not in the ledger"
        )

    def cancelled(self, wish: "Wish") -> None:
        """An acknowledged cancel is in the ledger."""
        row = self._row(
            "SELECT state, cancel_requested FROM jobs WHERE id = ?", wish.id
        )
        held = row is not None and (
            row["cancel_requested"] or JobState(row["state"]).terminal
        )
        self.expect(
            bool(held) or wish.resumes > 0,
            f"the cancel of {wish.id} was acknowledged and is not in the ledger",
        )

    def commanded(self, host: Host, start: wire.StartAttempt) -> None:
        """What is sent to a host is in the ledger first, and is meant for it."""
        attempt_id, rank = attempt_and_rank(start.attempt_id)
        row = self._row(
            "SELECT token, placements, state FROM attempts WHERE id = ?", attempt_id
        )
        if row is None:
            self.broken(f"{start.attempt_id} was sent before its intent was committed")
            return
        self.expect(
            row["token"] == start.token,
            f"{start.attempt_id} came with token {start.token}",
        )
        places = [place["node_id"] for place in json.loads(row["placements"])]
        self.expect(
            host.node_id == places[rank],
            f"{start.attempt_id} was sent to another host than the ledger says",
        )
        if start.resume_sha256:
            self.expect(
                start.resume_sha256 in self.world.blobs.kept,
                f"{start.attempt_id} resumes from what is deleted",
            )

    def begun(self, host: Host, process: Process, start: wire.StartAttempt) -> None:
        """A program starts: its job runs nowhere else, and there is room for it."""
        beside = [
            p
            for machine in self.world.machines
            for p in machine.host.history
            if p.alive
        ]
        attempt_id, _ = attempt_and_rank(start.attempt_id)
        twins = [
            p.attempt_id
            for p in beside
            if p.job_id == process.job_id
            and attempt_and_rank(p.attempt_id)[0] != attempt_id
        ]
        self.expect(
            not twins, f"{process.job_id} runs as {process.attempt_id} and as {twins}"
        )
        history = [p for machine in self.world.machines for p in machine.host.history]
        self.expect(
            all(p.attempt_id != process.attempt_id for p in history),
            f"{process.attempt_id} was run twice",
        )
        here = host.live()
        fleet = self.world.fleet
        is_model = start.shares_gpus or start.command[0] == "serve"
        taken = {
            uuid
            for p in here
            if not is_model and not (fleet and fleet.is_model(p))
            for uuid in p.gpus
        }
        self.expect(
            not taken & process.gpus,
            f"GPUs {taken & process.gpus} run {process.attempt_id} and another",
        )
        cores = sum(p.cpus for p in here) + process.cpus
        self.expect(
            cores <= host.cpus, f"{cores:g} cores are in use on a host of {host.cpus}"
        )
        row = self._row("SELECT state, job_id FROM attempts WHERE id = ?", attempt_id)
        self.expect(
            row is not None and AttemptState(row["state"]).live,
            f"{start.attempt_id} begins, and is over in the ledger: {row}",
        )
        self._check_parents(process)

    def _check_parents(self, process: Process) -> None:
        row = self._row("SELECT depends_on FROM jobs WHERE id = ?", process.job_id)
        parents = json.loads(row["depends_on"]) if row else []
        history = [p for machine in self.world.machines for p in machine.host.history]
        for parent in parents:
            done = any(p.job_id == parent and p.code == 0 for p in history)
            done = done or self._is_answered(parent)
            self.expect(
                done, f"{process.job_id} began before its parent {parent} had completed"
            )

    def _is_answered(self, job_id: str) -> bool:
        """Whether it is a prompt that a model has answered."""
        fleet = self.world.fleet
        wishes = self.world.people.wishes.values()
        prompts = [wish.body.get("prompt") for wish in wishes if wish.id == job_id]
        return bool(fleet and any(fleet.answered[prompt] for prompt in prompts))

    # --- at the end ---

    def unfinished(self) -> list[str]:
        """The acknowledged jobs that are not over, and programs that still run."""
        server = self.world.server
        if server is None or not server.ready:
            return ["the server"]
        rows = [row for page in server.ledger.queries.live_jobs() for row in page]
        processes = [p for m in self.world.machines for p in m.host.live()]
        fleet = self.world.fleet
        batches: list[str] = []
        if fleet:
            # Models stay loaded.
            assert server.controller is not None
            jobs = server.controller.core.view.jobs
            rows = [
                row
                for row in rows
                if row.id not in jobs or jobs[row.id].kind != "model"
            ]
            processes = [p for p in processes if not fleet.is_model(p)]
            batches = fleet.unfinished(server)
        return [
            *(f"{row.id} {row.state}" for row in rows),
            *(p.attempt_id for p in processes),
            *batches,
        ]

    def all_done(self) -> bool:
        return not self.unfinished()

    def check(self) -> None:
        """Everything, on the ledger, once all is over."""
        server = self.world.server
        assert server is not None and server.controller is not None
        ledger = server.ledger
        tables = state_of(ledger.engine)
        self._check_fold(ledger, tables)
        self._check_journal(ledger)
        self._check_jobs(tables)
        self._check_attempts(tables)
        view = server.controller.core.view
        self.expect(
            not view.attempts and not view.jobs, "the view holds jobs when all are over"
        )
        booked = [node.id for node in view.nodes.values() if node.bookings]
        self.expect(not booked, f"bookings are left on {booked}")
        left = [i for machine in self.world.machines for i in machine.host.journal]
        self.expect(not left, f"agents still hold {left}, which are settled")

    def _check_fold(self, ledger: Ledger, tables: Any) -> None:
        folded: dict[Any, dict[str, dict[str, Any]]] = defaultdict(dict)
        with ledger.engine.connect() as connection:
            for change in history(connection):
                folded[change.table].setdefault(change.key, {}).update(change.values)
        for name, rows in tables.items():
            key = key_column(STATE_TABLES[name]).name
            told = {
                row_key: {
                    **dict.fromkeys(row),
                    key: row_key,
                    **folded[name].get(row_key, {}),
                }
                for row_key, row in rows.items()
            }
            self.expect(
                told == dict(rows) and folded[name].keys() == rows.keys(),
                f"{name} is not the journal's fold",
            )

    def _check_journal(self, ledger: Ledger) -> None:
        """Every step was legal; a terminal state was left by its owner's resume only;
        one live attempt a job.
        """
        jobs: dict[str, JobState] = {}
        attempts: dict[str, tuple[str, AttemptState]] = {}
        ends: Counter[str] = Counter()
        for row in ledger.queries.events_after(0, 1_000_000):
            for table, key, values in row["changes"]:
                if table == "jobs" and "state" in values:
                    state = JobState(values["state"])
                    before = jobs.get(key)
                    legal = (
                        before is None or state is before or state in JOB_MOVES[before]
                    )
                    resumed = row["kind"] == "job.resumed"
                    legal = legal and not (
                        before in TERMINAL and state is not before and not resumed
                    )
                    self.expect(
                        legal, f"{key} went from {before} to {state} by {row['kind']}"
                    )
                    jobs[key] = state
                elif table == "attempts" and "state" in values:
                    state = AttemptState(values["state"])
                    before = attempts.get(key)
                    job_id = values.get("job_id") or (before[0] if before else "")
                    legal = (
                        before is None
                        or state is before[1]
                        or state in ATTEMPT_MOVES[before[1]]
                    )
                    self.expect(legal, f"{key} went from {before} to {state}")
                    ends[key] += not state.live
                    attempts[key] = job_id, state
            live = Counter(job_id for job_id, state in attempts.values() if state.live)
            self.expect(
                all(count == 1 for count in live.values()), f"two live attempts: {live}"
            )
        self.expect(
            all(count <= 1 for count in ends.values()), f"attempts ended twice: {ends}"
        )

    def _check_jobs(self, tables: Any) -> None:
        jobs = tables["jobs"]
        given = (row["idempotency_key"] for row in jobs.values())
        keys = Counter(key for key in given if key is not None)
        self.expect(
            all(count == 1 for count in keys.values()),
            f"keys that made several jobs: {keys}",
        )
        for wish in self.world.people.wishes.values():
            row = jobs.get(wish.id)
            if row is None:
                self.broken(f"{wish.id} was acknowledged and is lost")
                continue
            if wish.cancelled and not wish.resumes:
                self.expect(
                    row["state"] in TERMINAL,
                    f"{wish.id} was cancelled and is {row['state']}",
                )
            if "prompt" in wish.body:
                self._check_prompt(wish, row)
                continue
            processes = [
                p
                for machine in self.world.machines
                for p in machine.host.history
                if p.job_id == wish.id
            ]
            if row["state"] == "completed":
                self.expect(
                    any(p.code == 0 for p in processes),
                    f"{wish.id} completed, and nothing ran to its end",
                )
            preempted = sum(
                attempt["job_id"] == wish.id and attempt["reason"] == "preempted"
                for attempt in tables["attempts"].values()
            )
            most = (1 + wish.body["retry_count"]) * (1 + wish.resumes) + preempted
            ran = {attempt_and_rank(p.attempt_id)[0] for p in processes}
            self.expect(
                len(ran) <= most,
                f"{wish.id} ran {len(ran)} times; {most} were allowed",
            )

    def _check_prompt(self, wish: "Wish", row: Any) -> None:
        """A prompt that completed was answered; one that failed had a reason to."""
        fleet = self.world.fleet
        assert fleet is not None
        answered = fleet.answered[wish.body["prompt"]]
        if row["state"] == "completed":
            self.expect(answered > 0, f"{wish.id} completed, and no model answered it")

    def _check_attempts(self, tables: Any) -> None:
        """Each program's exit is in the ledger as it was, and paid for as long as it
        ran by the ledger.
        """
        processes = {
            p.attempt_id: p
            for machine in self.world.machines
            for p in machine.host.history
        }
        for attempt_id, row in tables["attempts"].items():
            process = processes.get(attempt_id)
            shares = len(row["placements"] or ())
            if shares > 1 and row["exit_code"] == 0 and not row["reason"]:
                names = [share_id(attempt_id, rank) for rank in range(shares)]
                self.expect(
                    all(name in processes for name in names)
                    and all(processes[name].code == 0 for name in names),
                    f"{attempt_id} ended well, and one of its shares did not",
                )
            elif (
                process
                and shares == 1
                and row["state"] == "ended"
                and row["reason"] != "exit_status_lost"
            ):
                told = (row["exit_code"], row["signal"])
                seen = (process.code, process.signal)
                self.expect(
                    told == seen,
                    f"{attempt_id} left with {seen}; the ledger has {told}",
                )
            ran_s = run_time_s(row["started_at"], row["ended_at"], row["ran_s"])
            owed = Decimal(row["price_per_hour"]) * Decimal(ran_s) / 3600
            if row["basis"] == "share":
                owed = Decimal(0)  # the job of its model's server pays
            self.expect(
                abs(Decimal(row["cost"]) - owed) < Decimal("0.01"),
                f"{attempt_id} cost {row['cost']}, by the ledger's times it would be"
                f" {owed}",
            )

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
