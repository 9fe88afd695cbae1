"""Runs a flow: each step when what it needs is done, unless nothing of it has changed.

A step's job carries the digest of all that it depends on as a label. So the instance
knows what was done, and this process may be killed anywhere.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from gpuyard.client import calls
from gpuyard.client.bodies import at_home_here, submit_late
from gpuyard.client.sync import Client
from gpuyard.domain.jobs import Job
from gpuyard.domain.states import JobState
from gpuyard.flows import contents
from gpuyard.flows.carrying import Carrier, newest_done
from gpuyard.flows.spec import Flow, Step, files_in_command, naming_step

FLOW_LABEL = "flow"
PLACE_LABEL = "flow-place"
STEP_LABEL = "flow-step"
KEY_LABEL = "flow-key"
PART_LABEL = "flow-part"
"""`step`, or `end`."""
NEED_LABEL = "flow-need-"
"""With a number behind it, from 0: the name of a step that this one needs."""
_SHORTEST_S = 0.1
_LONGEST_S = 1.0


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What became of a step: `state` is `cached`, `completed`, `failed`, `skipped`
    (something that it needs has failed), or the state in which its job ended. `why` it
    ran, or failed.
    """

    step: str
    state: str
    why: str = ""
    job: Job | None = None

    @property
    def is_fine(self) -> bool:
        """True if steps that need it may run."""
        return self.state in ("cached", "completed")

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "step": self.step,
            "state": self.state,
            "why": self.why,
            "job": self.job.id if self.job else None,
            "exit_code": self.job.exit_code if self.job else None,
        }


@dataclass(slots=True)
class _RunningStep:
    """A step whose job is not over. `is_current`: its inputs are those of now."""

    job: Job
    why: str
    is_current: bool


@dataclass(slots=True)
class Runner:
    """One flow in a folder of this machine. `tell` hears of each step that begins
    (with its job) or is over. Steps in `forced` run whatever was done before. Jobs that
    say no deadline have that of the flow (`deadline`, UTC seconds).
    """

    client: Client
    flow: Flow
    folder: Path
    tell: Callable[[StepEnd], object]
    forced: Collection[str] = ()
    deadline: float | None = None
    done: dict[str, StepEnd] = field(default_factory=dict[str, StepEnd])
    # Once it is set, no more steps are begun.
    stopped: Event = field(default_factory=Event)
    _running: dict[str, _RunningStep] = field(default_factory=dict[str, _RunningStep])
    _carrier: Carrier = field(init=False)

    def __post_init__(self) -> None:
        self._carrier = Carrier(self.client, self.folder, self._place)

    def run(self) -> list[StepEnd]:
        """Go through all steps, as many at once as can; what became of each that is
        over.

        InvalidInputError, before anything runs, for an input that no step writes and
        that is not there.
        """
        for name, step in self.flow.steps.items():
            if not step.needs:
                contents.files_of(self.folder, step.inputs, f"steps.{name}.inputs")
        pause = _SHORTEST_S
        while len(self.done) < len(self.flow.steps) and not self.stopped.is_set():
            changed = self._look()
            for name, step in self.flow.steps.items():
                if name not in self.done and name not in self._running:
                    changed = self._begin(name, step) or changed
            if self._running:
                pause = _SHORTEST_S if changed else min(pause * 1.3, _LONGEST_S)
                self.stopped.wait(pause)
        return [self.done[name] for name in self.flow.steps if name in self.done]

    def _begin(self, name: str, step: Step) -> bool:
        """Start a step, if it can; whether something was decided."""
        before = [self.done.get(need) for need in step.needs]
        bad = [one.step for one in before if one is not None and not one.is_fine]
        if bad:
            self._end(StepEnd(name, "skipped", f"{bad[0]} has not completed"))
            return True
        if None in before:
            return False
        files = self._files(name, step)
        key = self._key(step, files)
        jobs = self._jobs_of(name)
        newest = jobs[0] if jobs else None
        if newest is not None and not newest.state.terminal:
            is_current = newest.labels[KEY_LABEL] == key
            why = "it runs already" if is_current else "its inputs have changed"
            self._running[name] = _RunningStep(newest, why, is_current)
            self.tell(StepEnd(name, "running", why, newest))
            return True
        kept = self._kept(name, step, key, jobs)
        if kept is not None:
            self._end(kept)
            return True
        why = self._reason(name, step, key, newest)
        if not why:
            self._end(StepEnd(name, "cached", "", newest))
            return True
        self._submit(name, step, [*files], key, len(jobs), why)
        return True

    def _submit(
        self,
        name: str,
        step: Step,
        files: Sequence[str],
        key: str,
        number: int,
        why: str,
    ) -> None:
        body = self._body(name, step, key, number)
        if step.carry:
            with naming_step(name):
                body = {**body, **self._carrier.job(name, step, files)}
        else:
            # It runs in the folder itself, never in a copy, for others read there what
            # it writes.
            body = {**body, "workdir": str(self.folder), "live": True}
        with naming_step(name):
            job = self._send(step, at_home_here(body))
        self.forced = [one for one in self.forced if one != name]
        self._running[name] = _RunningStep(job, why, is_current=True)
        self.tell(StepEnd(name, "running", why, job))

    def _files(self, name: str, step: Step) -> dict[str, str]:
        """The files that the step reads, with their digests."""
        written = [path for n in step.needs for path in self.flow.steps[n].outputs]
        read = [*step.inputs, *written, *files_in_command(step, self.folder)]
        return contents.digests(self.folder, read, f"steps.{name}.inputs")

    def _key(self, step: Step, files: Mapping[str, str]) -> str:
        """The digest of all that the step depends on."""
        declared = {**step.job, "outputs": step.outputs}
        return contents.key_of(declared, files, self._place)

    @property
    def _place(self) -> str:
        """The folder, as a short digest: a copy of the flow elsewhere is another."""
        return contents.short_digest(str(self.folder))

    def _jobs_of(self, name: str) -> list[Job]:
        """All jobs that this step has ever had, newest first."""
        return [*self.client.jobs(label=self._labels(name), limit=1000)]

    def _labels(self, name: str) -> dict[str, str]:
        return {
            FLOW_LABEL: self.flow.name,
            PLACE_LABEL: self._place,
            STEP_LABEL: name,
        }

    def _kept(
        self, name: str, step: Step, key: str, jobs: Sequence[Job]
    ) -> StepEnd | None:
        """What became of a step that is carried, if a job has once done the same, and
        its outputs are still kept: they are in the folder now.
        """
        if not step.carry or not step.outputs or name in self.forced:
            return None
        for job in newest_done(jobs, {KEY_LABEL: key}):
            try:
                lost = self._carrier.fetch(job, step)
            except OSError as error:
                return StepEnd(name, "failed", _not_written(error), job)
            if not lost:
                return StepEnd(name, "cached", "", job)
        return None

    def _reason(self, name: str, step: Step, key: str, newest: Job | None) -> str:
        """Why the step is to run; empty if nothing has changed since it did."""
        if name in self.forced:
            return "it is forced"
        if newest is None:
            return "it has not run yet"
        if newest.state is not JobState.COMPLETED:
            return f"its last run was {newest.state.value}"
        if newest.labels[KEY_LABEL] != key:
            return "it or its inputs have changed"
        gone = contents.missing(self.folder, step.outputs)
        return f"{gone[0]} is gone" if gone else ""

    def _send(self, step: Step, body: dict[str, Any]) -> Job:
        """Submit a step. If the deadline of the flow has passed, it has none."""

        def submit(given: dict[str, Any]) -> Job:
            (job,) = self.client.submit([given])
            return job

        is_own = "deadline" in step.job
        return submit(body) if is_own else submit_late(submit, body)

    def _body(self, name: str, step: Step, key: str, number: int) -> dict[str, Any]:
        """The step's job, without where it runs."""
        job = step.job
        of_flow = {} if self.deadline is None else {"deadline": self.deadline}
        return {
            **of_flow,
            **job,
            "name": job.get("name", f"{self.flow.name}-{name}"),
            "labels": {
                **job.get("labels", {}),
                **self._labels(name),
                **_drawn_labels(self.flow.steps[name]),
                KEY_LABEL: key,
            },
            # Two commands at once make one job, but two equal steps make two.
            "idempotency_key": f"flow:{key}:{contents.short_digest(name)}:{number}",
        }

    def _look(self) -> bool:
        """Read the jobs that run; whether one is over."""
        over = False
        for name, running in [*self._running.items()]:
            running.job = self.client.call(calls.job(running.job.id))
            if not running.job.state.terminal:
                continue
            over = True
            del self._running[name]
            if running.is_current:
                self._end(self._outcome(name, running))
        return over

    def _outcome(self, name: str, running: _RunningStep) -> StepEnd:
        job = running.job
        if job.state is not JobState.COMPLETED:
            return StepEnd(name, job.state.value, running.why, job)
        step = self.flow.steps[name]
        if step.carry:
            try:
                gone = self._carrier.fetch(job, step)
            except OSError as error:
                return StepEnd(name, "failed", _not_written(error), job)
        else:
            gone = contents.missing(self.folder, step.outputs)
        if gone:
            return StepEnd(name, "failed", self._without(gone[0], step, job), job)
        return StepEnd(name, "completed", running.why, job)

    def _without(self, output: str, step: Step, job: Job) -> str:
        """Why an output of a completed step is missing."""
        if step.carry:
            return f"it has left no {output}; `gpuyard show {job.id}` may say why"
        where = f" (it ran on {job.node})" if job.node else ""
        remedy = "; if it runs on another machine, write carry = true"
        return f"it has not written {output} into {self.folder}{where}{remedy}"

    def _end(self, done: StepEnd) -> None:
        self.done[done.step] = done
        self.tell(done)


def _drawn_labels(step: Step) -> dict[str, str]:
    """By these, the page finds the steps of all flows, and draws what needs what."""
    needs = {f"{NEED_LABEL}{n}": need for n, need in enumerate(step.needs)}
    return {PART_LABEL: "step", **needs}


def _not_written(error: OSError) -> str:
    """Why the outputs of a step are not in the folder. They are kept with its job, so
    the next run fetches them.
    """
    return f"its outputs cannot be written here: {error.filename}: {error.strerror}"
