"""A job with an image on a rented machine: the agent there runs `docker run` for it.

The program sees the same paths inside as outside, so that what the agent looks for on
the machine (checkpoints, artifacts) is where the program wrote it.
"""

import shlex
from collections.abc import Iterator
from dataclasses import replace

from gpuyard.domain.attempt_order import DEFAULT_ENVIRONMENT, AttemptOrder
from gpuyard.domain.datasets import DatasetMount

DOCKER = "/usr/bin/docker"
# Against fork bombs: the limit of the agent does not reach into containers.
_MOST_PROCESSES = 8192
# What the agent sets for each program. Docker leaves out those that are not set.
_SET_BY_AGENT = (
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "GPUYARD_ATTEMPT",
    "GPUYARD_ATTEMPT_ID",
    "GPUYARD_JOB_ID",
    "GPUYARD_NODE",
    "GPUYARD_RESUME_FROM",
    "OMP_NUM_THREADS",
    *DEFAULT_ENVIRONMENT,
)
# The agent chooses the account, the working folder, and the places of datasets and of
# the checkpoint to resume from: only a shell on the machine knows them. The arguments
# of the shell are those of `docker run`.
_BEGIN = """\
same() {
    printf 'type=bind,"source=%s","target=%s"' "$1" "$1"
}
"""
_END = """\
if [ "$GPUYARD_RESUME_FROM" ]; then
    set -- --mount "$(same "${GPUYARD_RESUME_FROM%/*}")" "$@"
fi
set -- --user "$(id -u):$(id -g)" --workdir "$PWD" --mount "$(same "$PWD")" "$@"
"""


def in_container(order: AttemptOrder, docker: str = DOCKER) -> AttemptOrder:
    """The order for the agent of a machine that has Docker; the same one if it names no
    image.

    The command runs in place of the image's own entry point. The machine's own
    environment does not apply in an image, nor do the `PATH` and the packages of the
    submission.
    """
    if not order.image:
        return order
    options = list(_options(order))
    named = [*options, "--entrypoint", *order.command[:1], "--", order.image]
    arguments = [*named, *order.command[1:]]
    run = f'exec {shlex.quote(docker)} run "$@"\n'
    script = "".join((_BEGIN, *map(_mount_of, order.datasets), _END, run))
    environment = dict(order.environment)
    environment.pop("PATH", None)
    return replace(
        order,
        command=("/bin/sh", "-c", script, "docker", *arguments),
        environment=environment,
        image=None,
        volumes={},
        carried_environment="",
        packages="",
    )


def container_name(attempt_id: str) -> str:
    """The name of the container of an attempt."""
    return f"gpuyard-{attempt_id}"


def removal_of(attempt_id: str, docker: str = DOCKER) -> tuple[str, ...]:
    """The command that removes what an attempt may have left: the container of a
    `docker run` that was killed runs on. It succeeds if there is none.
    """
    return (docker, "rm", "--force", container_name(attempt_id))


def _options(order: AttemptOrder) -> Iterator[str]:
    need = order.gpu_spec
    yield from ("--rm", "--init", "--name", container_name(order.attempt_id))
    yield from ("--label", f"gpuyard.attempt={order.attempt_id}")
    # The machine is the job's alone: its ports are those that people forward to, and
    # shared memory is as large as the machine's.
    yield from ("--network", "host", "--ipc", "host")
    yield from ("--security-opt", "no-new-privileges")
    yield from ("--pids-limit", str(_MOST_PROCESSES))
    # The agent keeps the output; twice would take twice the disk.
    yield from ("--log-driver", "none")
    if order.stdin is not None or order.interactive:
        yield "--interactive"
    if need.vcpus:
        yield from ("--cpus", f"{need.vcpus:g}")
    if need.ram_gb:
        yield from ("--memory", str(int(need.ram_gb * (1 << 30))))
    if need.gpu_count:
        uuids = ",".join(order.gpu_uuids)
        # Docker reads this as a row of CSV.
        yield from ("--gpus", f'"device={uuids}"' if uuids else "all")
    else:
        yield from ("--env", "NVIDIA_VISIBLE_DEVICES=void")
    yield from _environment(order)
    for inside, outside in order.volumes.items():
        source = _field("source", outside)
        yield from ("--mount", f"type=bind,{source},{_field('target', inside)}")


def _environment(order: AttemptOrder) -> Iterator[str]:
    """Names only: values on a command line are there for all to read."""
    own = order.whole_environment.keys() - {"PATH"}
    if "HOME" not in own:
        yield from ("--env", "HOME=/tmp")
    datasets = {mount.variable for mount in order.datasets}
    for name in sorted(own | datasets | set(_SET_BY_AGENT)):
        yield from ("--env", name)


def _mount_of(dataset: DatasetMount) -> str:
    """The line of the shell that mounts a dataset, which only that program finds."""
    return f'set -- --mount "$(same "${dataset.variable}"),readonly" "$@"\n'


def _field(name: str, value: str) -> str:
    """A field of a row of CSV, whatever characters it has."""
    text = f"{name}={value}".replace('"', '""')
    return f'"{text}"'
