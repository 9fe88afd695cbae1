"""The order for a provider as the message that starts its attempt on a node."""

from msgspec.structs import replace

from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder, Share
from gpuyard.domain.gangs import share_id, share_variables


def start_message(
    order: AttemptOrder, epoch: int, gpu_uuids: list[str]
) -> wire.StartAttempt:
    """What the agent is told. `epoch`: of the server that tells it."""
    checkpoint = order.checkpoint
    resume = order.resume_from
    return wire.StartAttempt(
        attempt_id=order.attempt_id,
        token=order.token,
        epoch=epoch,
        job_id=order.job_id or order.attempt_id,
        command=list(order.command),
        environment=dict(order.environment),
        workdir=order.workdir,
        gpu_uuids=gpu_uuids,
        cpus=order.gpu_spec.vcpus,
        memory_gb=order.gpu_spec.ram_gb,
        timeout_s=order.timeout_s,
        max_silence_s=order.max_silence_s,
        stdin=order.stdin,
        interactive=order.interactive,
        checkpoint_path=checkpoint.path,
        checkpoint_signal=checkpoint.signal,
        checkpoint_every_s=checkpoint.every_s,
        grace_s=order.grace_s,
        resume_sha256=resume.sha256 if resume else None,
        resume_name=resume.name if resume else None,
        resume_directory=resume.directory if resume else False,
        resume_args=list(checkpoint.resume_args),
        prefetch_group=order.prefetch_group,
        prefetched=order.prefetched,
        shares_gpus=order.shares_gpus,
        workspace=order.workspace or None,
        datasets=list(order.datasets),
        packages=order.packages,
        artifacts=order.artifacts,
        secrets=dict(order.secrets),
        project=order.project,
        user=order.user,
        carried_environment=order.carried_environment,
        code=order.code,
        log_limit_gb=order.log_limit_gb,
    )


def start_of_share(
    order: AttemptOrder, share: Share, address: str, epoch: int
) -> wire.StartAttempt:
    """What the agent of one of several nodes is told. `address`: the host of the first
    share, which alone saves checkpoints and artifacts, and gets the input.
    """
    variables = share_variables(order.attempt_id, share.rank, order.nodes, address)
    message = replace(
        start_message(order, epoch, list(share.gpu_uuids)),
        attempt_id=share_id(order.attempt_id, share.rank),
        environment={**variables, **order.environment},
        prefetch_group="",
        prefetched=False,
    )
    if share.rank == 0:
        return message
    return replace(
        message,
        stdin=None,
        checkpoint_path=None,
        checkpoint_every_s=None,
        artifacts=None,
    )
