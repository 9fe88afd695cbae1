"""The fields of a job or a schedule that the options of `gpuyard run` give."""

from pathlib import Path
from typing import Any

from gpuyard.cli.notices import named
from gpuyard.cli.options import (
    deadline_of,
    given,
    gpu_request,
    pairs_of,
    secrets_of,
    words_of,
)
from gpuyard.cli.run_options import RunOptions
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.packages_field import AUTO, NONE


def job_fields(options: RunOptions) -> dict[str, Any]:
    """The fields of a JobSpec that the options give, but for the command, the variables
    and the input.
    """
    return {
        **_resources(options),
        **_limits(options),
        **_environment_fields(options),
        **_checkpoint(options),
        **_dependencies(options),
        **_places(options),
        **given(
            name=options.name,
            project=options.project,
            labels=pairs_of("label", options.label or [], {}) or None,
            idempotency_key=options.idempotency_key,
            array=options.array,
            notify=named(options.notify),
        ),
    }


def _resources(options: RunOptions) -> dict[str, Any]:
    """What it needs."""
    kind = given(memory_gb=options.gpu_memory, gpu_class=options.gpu_class)
    gpus = gpu_request(options.gpus, kind)
    resources = given(
        cpus=options.cpus,
        memory_gb=options.memory,
        nodes=options.nodes,
        gpus=gpus or None,
    )
    return given(resources=resources or None, image=options.image, tier=options.tier)


def _limits(options: RunOptions) -> dict[str, Any]:
    """How long it may run, how often it is tried, how urgent it is, and until when."""
    return given(
        timeout_s=options.timeout,
        retry_count=options.retries,
        retry_on=options.retry_on,
        log_limit_gb=options.log_limit_gb,
        priority=options.priority,
        # That of a schedule is one of each of its jobs.
        deadline=None if options.schedule else deadline_of(options.deadline),
    )


def _environment_fields(options: RunOptions) -> dict[str, Any]:
    """Its folder, and what its program gets of this shell."""
    workdir = options.workdir
    return given(
        clean_env=options.clean_env or None,
        live=options.live or None,
        secrets=secrets_of(options.secret or []) or None,
        interactive=options.interactive or None,
        workdir=str(workdir.absolute()) if workdir else None,
    )


def _packages(file: str | None) -> str | None:
    """A file as its whole path: the job may have another folder."""
    if file is None or file in (AUTO, NONE):
        return file
    return str(Path(file).absolute())


def _checkpoint(options: RunOptions) -> dict[str, Any]:
    """How it saves what it has done, continues from there, and what is kept of it."""
    checkpoint = given(
        path=options.checkpoint,
        signal=options.checkpoint_signal,
        grace_s=options.grace,
        resume_args=words_of("--resume-args", options.resume_args),
    )
    return given(
        checkpoint=checkpoint or None,
        artifacts=options.artifacts or None,
        artifacts_always=options.artifacts_always or None,
    )


def _dependencies(options: RunOptions) -> dict[str, Any]:
    """What must happen before it starts."""
    return given(
        depends_on=options.after or None,
        depends_on_failed=options.after_failed or None,
        depends_on_any=options.after_any or None,
        held=options.hold or None,
    )


def _places(options: RunOptions) -> dict[str, Any]:
    """Where it may run, at what price, and which place is best."""
    allowed = given(
        regions=options.region or None,
        quarantined=options.allow_quarantined or None,
    )
    return given(
        provider=options.provider,
        allowed=allowed or None,
        workspace=options.workspace,
        datasets=options.dataset or None,
        packages=_packages(options.packages),
        max_price=options.max_price,
        spot=options.spot or None,
        preemptible=options.preemptible or None,
        strategy=options.strategy,
    )


def schedule_fields(options: RunOptions) -> dict[str, Any]:
    """The fields of the schedule that the options describe; none without --schedule."""
    fields = given(
        cron=options.schedule,
        timezone=options.timezone,
        overlap=options.overlap,
        starting_deadline_s=options.starting_deadline,
        deadline_s=options.deadline if options.schedule else None,
    )
    if fields and options.schedule is None:
        option = f"--{next(iter(fields)).removesuffix('_s').replace('_', '-')}"
        raise InvalidInputError.of(option, "belongs to --schedule", "add --schedule")
    if fields and options.array is not None:
        fault = "does not go with --schedule"
        raise InvalidInputError.of("--array", fault, "give one of them")
    return fields
