"""What gpuyard reads off a program when it is submitted, and tells its owner: how it
goes on from a checkpoint, and that it is meant for a GPU.
"""

from collections.abc import Callable, Sequence

from gpuyard.controller.images import source_of
from gpuyard.domain.jobspec import GpuRequest, JobKind, JobSpec
from gpuyard.domain.shape import Shape
from gpuyard.insight.gpu_use import says_gpu
from gpuyard.insight.resume_options import resume_arguments


def needs_resume_advice(spec: JobSpec) -> bool:
    """True for a job with checkpoints whose program is not told to go on from them."""
    return bool(spec.checkpoint.path and not spec.checkpoint.resume_args)


def resume_advice(spec: JobSpec) -> list[str]:
    """What the owner of a program should know that saves checkpoints and is not told to
    go on from them.
    """
    if not needs_resume_advice(spec):
        return []
    arguments = " ".join(resume_arguments(source_of(spec.command, spec.workdir)))
    if not arguments:
        return []
    return [
        "when this program is tried again or resumed, it begins anew unless it is told"
        f" to go on; it seems to take --resume-args '{arguments}'"
    ]


def may_need_gpu(spec: JobSpec) -> bool:
    """True for a job that neither says how many GPUs it wants nor names a size."""
    says_size = spec.tier is not None or spec.resources.says_gpus
    return spec.kind is JobKind.COMMAND and not says_size


def gpu_sign(command: Sequence[str], workdir: str | None) -> str | None:
    """What in a program is meant for a GPU; None if nothing is."""
    return says_gpu(source_of(command, workdir), command)


class GpuAdvice:
    """What becomes of a job whose program is meant for a GPU, and that does not say how
    many it wants.

    `can_start(shape)` says whether such a job could ever start here. `gives_gpu`: it
    gets one.
    """

    def __init__(self, can_start: Callable[[Shape], bool], *, gives_gpu: bool) -> None:
        self._can_start = can_start
        self._gives_gpu = gives_gpu

    def apply(self, spec: JobSpec, sign: str, warnings: list[str]) -> JobSpec:
        """Give the job one GPU, or tell its owner that it gets none; neither where
        there is no GPU for it. `sign` says what in the program is meant for one.
        """
        resources = spec.resources.model_copy(update={"gpus": GpuRequest(count=1)})
        wanted = spec.model_copy(update={"resources": resources})
        if not self._can_start(Shape.of(wanted)):
            return spec
        if self._gives_gpu:
            warnings.append(
                f"it gets 1 GPU, because its program is meant for one ({sign}) and it"
                " did not say how many; --gpus 0 gives it none"
            )
            return wanted
        warnings.append(
            f"its program is meant for a GPU ({sign}), and the job asks for none: add"
            " --gpus 1, or --gpus 0 if the CPU is meant"
        )
        return spec
