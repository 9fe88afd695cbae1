"""Keeps sweeps on the instance, as jobs, and finds them again.

A sweep has no file. Its gate is a held job whose input is the sweep's spec; it is
released when the sweep is over, and cancelled to stop it, so other jobs can wait for a
sweep as for a job. A run is a job whose labels are its number and its values, and whose
idempotency key is the sweep's id and that number: it exists whole or not at all, and
never twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from gpuyard.client import calls
from gpuyard.client.bodies import submit_late, with_local_deadline
from gpuyard.client.sync import Client
from gpuyard.domain.errors import InvalidInputError, NotFoundError, RefusedError
from gpuyard.domain.jobs import Job
from gpuyard.sweeps import sweep as labels
from gpuyard.sweeps.commands import with_values
from gpuyard.sweeps.spec import SweepSpec
from gpuyard.sweeps.sweep import Run, Sweep, parameters_of

# What the gate has in common with the runs; it needs no GPU and runs nothing of theirs.
_SHARED = (
    "image",
    "provider",
    "provider_options",
    "allowed",
    "project",
    "workdir",
    "environment",
    "carried_environment",
    "submitted_code",
    "clean_env",
    "live",
    "depends_on",
)


class SweepRecords:
    """The sweeps of an instance."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, spec: SweepSpec, *, numbered: bool) -> Sweep:
        """Record a new sweep. If its name is taken it gets a number behind it
        (`numbered`), or RefusedError.

        Those in `notify` of its job are told when all of it has ended, and not of each
        run.
        """
        _check_command(spec.job)
        job = with_local_deadline(spec.job)
        notify = job.pop("notify", ())
        frozen = self._with_code(spec.model_copy(update={"job": job}))
        wanted = frozen.name
        for number in range(1, 10_000):
            name = wanted if number == 1 else f"{wanted}-{number}"
            named = frozen.model_copy(update={"name": name})
            sweep_id = uuid4().hex[:12]
            try:
                gate = self._gate(named, sweep_id, 0, notify)
            except RefusedError:
                if not self._gates({labels.NAME_LABEL: name}):
                    raise
                if not numbered:
                    break
                continue
            return Sweep(sweep_id, named, gate, 1)
        raise RefusedError(
            f"There is a sweep {wanted} already.",
            f"`gpuyard sweep resume {wanted}` goes on with it; or give another --name.",
        )

    def _with_code(self, spec: SweepSpec) -> SweepSpec:
        """The sweep whose runs all have the code and the environment of now."""
        stored, _ = self._client.storing_code([spec.job])
        (job,) = self._client.carrying(stored)
        return spec.model_copy(update={"job": job})

    def _gate(
        self, spec: SweepSpec, sweep_id: str, number: int, notify: Sequence[str] = ()
    ) -> Job:
        key = f"sweep:{spec.name}" if number == 0 else f"sweep:{sweep_id}:gate:{number}"
        body: dict[str, Any] = {
            **{name: spec.job[name] for name in _SHARED if name in spec.job},
            "name": spec.name,
            "command": ["true"],
            "stdin": spec.model_dump_json(),
            "held": True,
            "resources": {"cpus": 0.1, "gpus": 0},
            "labels": _labels(spec, sweep_id, "gate"),
            "idempotency_key": key,
            "notify": list(notify),
        }
        return self._client.call(calls.submit(body))

    def reopen(self, sweep: Sweep) -> Sweep:
        """A sweep that was stopped, with a new gate."""
        gate = self._gate(sweep.spec, sweep.id, sweep.gates)
        return Sweep(sweep.id, sweep.spec, gate, sweep.gates + 1, sweep.runs)

    def all(self) -> list[Sweep]:
        """Every sweep with its runs, newest first."""
        gates = self._gates({})
        return [self._read(sweep_id, found) for sweep_id, found in gates.items()]

    def find(self, name: str) -> Sweep:
        """The newest sweep of this name, or with this id, with its runs;
        NotFoundError.
        """
        for label in (labels.NAME_LABEL, labels.ID_LABEL):
            found = self._gates({label: name})
            for sweep_id, gates in found.items():
                return self._read(sweep_id, gates)
        raise NotFoundError(f"There is no sweep {name}.", "See `gpuyard sweep list`.")

    def _gates(self, label: Mapping[str, str]) -> dict[str, list[Job]]:
        """By the id of the sweep, its gates, newest first."""
        found: dict[str, list[Job]] = {}
        wanted = {**label, labels.PART_LABEL: "gate"}
        for job in self._client.jobs(label=wanted, limit=1000):
            if labels.ID_LABEL in job.labels:
                found.setdefault(job.labels[labels.ID_LABEL], []).append(job)
        return found

    def _read(self, sweep_id: str, gates: list[Job]) -> Sweep:
        gate = self._client.call(calls.job(gates[0].id))
        spec = SweepSpec.model_validate_json((gate.spec or {})["stdin"])
        runs = sorted(self._runs(sweep_id, spec), key=lambda run: run.number)
        return Sweep(sweep_id, spec, gate, len(gates), runs)

    def _runs(self, sweep_id: str, spec: SweepSpec) -> Iterator[Run]:
        label = {labels.ID_LABEL: sweep_id, labels.PART_LABEL: "run"}
        for job in self._client.jobs(label=label, limit=1000):
            yield self.run_of(job, spec)

    def run_of(self, job: Job, spec: SweepSpec) -> Run:
        """A run from its job, with its value."""
        number = int(job.labels[labels.NUMBER_LABEL])
        return Run(number, job, parameters_of(job), self._value(job, spec))

    def _value(self, job: Job, spec: SweepSpec) -> float | None:
        """The value that counts: only of a run that shows the metric."""
        last = job.progress.metrics.get(spec.metric)
        if last is None or spec.take == "last":
            return last
        values = [value for _, value in self.curve(job.id, spec)] or [last]
        return min(values) if spec.goal == "minimize" else max(values)

    def curve(self, job_id: str, spec: SweepSpec) -> list[tuple[int, float]]:
        """The step and the value of each point of a run's metric; a point without a
        step counts on from the one before.
        """
        series = self._client.call(calls.metrics(job_id, [spec.metric], 10_000))
        found: list[tuple[int, float]] = []
        for point in series.get(spec.metric, []):
            after = found[-1][0] + 1 if found else 0
            step = after if point["step"] is None else int(point["step"])
            found.append((step, point["value"]))
        return found

    def submit(self, sweep: Sweep, number: int, parameters: Mapping[str, str]) -> Run:
        """Queue a run. If another command has queued it before, that one, with the
        values that it has: they may be others.
        """
        body = _body_of_run(sweep, number, parameters)
        try:
            job = submit_late(
                lambda given: self._client.call(calls.submit(given)), body
            )
        except RefusedError:
            label = {labels.ID_LABEL: sweep.id, labels.NUMBER_LABEL: str(number)}
            job = next(self._client.jobs(label=label), None)
            if job is None:
                raise
        return self.run_of(job, sweep.spec)


def _body_of_run(
    sweep: Sweep, number: int, parameters: Mapping[str, str]
) -> dict[str, Any]:
    """The JobSpec of a run, as JSON."""
    spec = sweep.spec
    known = {"trial": str(number), "seed": str(spec.seed_of(number))}
    values = {f"{labels.VALUE_LABEL}{k}": v for k, v in parameters.items()}
    given = {**spec.job.get("labels", {}), **_labels(spec, sweep.id, "run")}
    return {
        **with_values(spec.job, parameters, known),
        "name": f"{spec.name}-{number}",
        "labels": {**given, labels.NUMBER_LABEL: str(number), **values},
        "idempotency_key": f"sweep:{sweep.id}:{number}",
    }


def _labels(spec: SweepSpec, sweep_id: str, part: str) -> dict[str, str]:
    return {
        labels.NAME_LABEL: spec.name,
        labels.ID_LABEL: sweep_id,
        labels.PART_LABEL: part,
    }


def _check_command(job: Mapping[str, Any]) -> None:
    """InvalidInputError unless the job runs a program, once."""
    if not job.get("command"):
        remedy = "name the program, such as train.py"
        raise InvalidInputError.of("command", "is missing", remedy)
    for field in ("array", "schedule", "idempotency_key", "held", "interactive"):
        if field in job:
            fault = "does not belong in the job of a sweep"
            raise InvalidInputError.of(f"job.{field}", fault, "leave it out")
