"""Drives a sweep to its end: starts its runs, gives up bad ones, ends it.

All it knows it has read from the instance, so it may be killed anywhere and another one
goes on.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from gpuyard.client import calls, job_calls
from gpuyard.client.sync import Client
from gpuyard.domain.errors import GpuyardError, RefusedError
from gpuyard.domain.states import JobState
from gpuyard.sweeps.choosers import Chooser, Curve
from gpuyard.sweeps.records import SweepRecords
from gpuyard.sweeps.sweep import PRUNED, Run, Sweep

_SHORTEST_S = 0.1
_LONGEST_S = 1.0
_TAIL = 5


class Driver:
    """One sweep being driven. `tell` gets it after each look at its runs."""

    def __init__(
        self,
        client: Client,
        sweep: Sweep,
        chooser: Chooser,
        tell: Callable[[Sweep], None],
    ) -> None:
        self._client = client
        self._records = SweepRecords(client)
        self._sweep = sweep
        self._chooser = chooser
        self._tell = tell
        self._runs = {run.number: run for run in sweep.runs}

    def drive(self) -> Sweep:
        """Go on until it is over, or stopped.

        GpuyardError when every run has failed; RefusedError when the instance takes
        no more jobs.
        """
        self._catch_up()
        pause = _SHORTEST_S
        while not self._is_stopped():
            ended = self._look()
            started = self._start_more()
            self._tell(self._now())
            if not self._live():
                self._end()
                return self._now()
            pause = _SHORTEST_S if ended or started else min(pause * 1.3, _LONGEST_S)
            time.sleep(pause)
        self._cancel_live()
        return self._now()

    def _catch_up(self) -> None:
        """Let the chooser know what ran before; what a stop has cancelled goes on."""
        for run in self._sweep.runs:
            self._chooser.begin(run.number, run.parameters)
            if run.job.state is JobState.CANCELLED and not run.is_pruned:
                self._resume(run)
            elif run.is_over:
                self._chooser.end(run, self._curve(run))
            elif run.is_pruned:
                self._client.call(calls.cancel(run.job.id))

    def _resume(self, run: Run) -> None:
        """Let a run go on that was cancelled."""
        try:
            job = self._client.call(calls.resume(run.job.id, None, {}))
        except RefusedError:
            # Another command has done it.
            job = self._client.call(calls.job(run.job.id))
            if job.state is JobState.CANCELLED:
                raise
        self._runs[run.number] = self._records.run_of(job, self._sweep.spec)

    def _is_stopped(self) -> bool:
        gate = self._client.call(calls.job(self._sweep.gate.id))
        self._sweep = Sweep(
            self._sweep.id, self._sweep.spec, gate, self._sweep.gates, self._sweep.runs
        )
        return gate.state.terminal

    def _live(self) -> list[Run]:
        return [run for run in self._runs.values() if not run.is_over]

    def _look(self) -> bool:
        """Read the runs that are not over; whether one has ended."""
        ended = False
        for known in self._live():
            job = self._client.call(calls.job(known.job.id))
            run = self._records.run_of(job, self._sweep.spec)
            self._runs[run.number] = run
            if run.is_over:
                ended = True
                self._chooser.end(run, self._curve(run))
            elif not run.is_pruned and run.value is not None:
                self._prune_if_bad(run)
        return ended

    def _curve(self, run: Run) -> Curve:
        """The run's curve, if anybody asks for it."""
        if self._sweep.spec.pruner is None:
            return ()
        return self._records.curve(run.job.id, self._sweep.spec)

    def _prune_if_bad(self, run: Run) -> None:
        """Give up a run. Its name says so first: if this process is killed in between,
        the next one knows.
        """
        if not self._chooser.should_prune(run.number, self._curve(run)):
            return
        name = {"name": f"{run.job.name}{PRUNED}"}
        self._client.call(job_calls.update(run.job.id, name))
        job = self._client.call(calls.cancel(run.job.id))
        self._runs[run.number] = self._records.run_of(job, self._sweep.spec)
        if job.state.terminal:
            self._chooser.end(self._runs[run.number], self._curve(run))

    def _start_more(self) -> bool:
        """Queue as many runs as may be; whether there were any."""
        started = False
        spec = self._sweep.spec
        while len(self._live()) < spec.parallel and not self._gives_up():
            number = max(self._runs, default=-1) + 1
            if number >= spec.count():
                break
            chosen = self._chooser.choose(number)
            run = self._records.submit(self._sweep, number, chosen)
            self._chooser.begin(number, run.parameters)
            self._runs[number] = run
            started = True
        return started

    def _gives_up(self) -> bool:
        """Whether so many have failed, and none done well, that more make no sense."""
        over = [run for run in self._runs.values() if run.is_over]
        failed = [run for run in over if run.has_failed]
        return len(failed) == len(over) >= self._most_failures()

    def _most_failures(self) -> int:
        return min(self._sweep.spec.max_failures, self._sweep.spec.count())

    def _now(self) -> Sweep:
        runs = [self._runs[number] for number in sorted(self._runs)]
        spec = self._sweep.spec
        return Sweep(self._sweep.id, spec, self._sweep.gate, self._sweep.gates, runs)

    def _end(self) -> None:
        """Open the gate; GpuyardError when every run has failed."""
        gate = self._sweep.gate.id
        if self._gives_up():
            self._client.call(calls.cancel(gate))
            raise _all_failed(self._client, self._now())
        # Refused where it was stopped meanwhile, or another command has released it.
        with suppress(RefusedError):
            self._client.call(job_calls.set_held([gate], "release"))
        self._client.wait_for(gate)
        self._is_stopped()

    def _cancel_live(self) -> None:
        live = [run.job.id for run in self._live()]
        if live:
            self._client.cancel_jobs(*live)
            self._client.wait_for(*live)
            self._look()
            self._tell(self._now())


def _all_failed(client: Client, sweep: Sweep) -> GpuyardError:
    """The error that says why: by the first run, and the end of its output."""
    first = next(run for run in sweep.runs if run.has_failed)
    total = sweep.spec.count()
    count = len([run for run in sweep.runs if run.has_failed])
    if first.outcome == "no metric":
        shown = ", ".join(sorted(first.job.progress.metrics)) or "no metric"
        why = f"it completed and never showed {sweep.spec.metric}, but {shown}"
    else:
        code = first.job.exit_code
        why = first.outcome if code is None else f"exit code {code}"
    output = b"".join(client.log_bytes(first.job.id, lines=_TAIL))
    tail = output.decode(errors="replace").strip() or "(no output)"
    return GpuyardError(
        f"The sweep {sweep.spec.name} is given up: each of its first {count} runs of"
        f" {total} has failed. The first, {first.job.name}: {why}. Its last lines:\n"
        f"{tail}\n",
        f"`gpuyard logs {first.job.name}` shows all.",
    )
