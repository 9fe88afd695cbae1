"""Compare ways of splitting a large model over a cluster, and measure which is best.

The names below are the library. Each is imported when it is first used, because some
need large packages.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "PromptRecord": "prompts",
    "PromptFileSet": "prompts",
    "PromptRepository": "prompts",
    "PromptDataFrameBuilder": "prompts",
    "OpenAICompletionClient": "completions",
    "LocalInferenceRunner": "baseline",
    "ParallelismStrategy": "strategies",
    "TensorParallelAcrossNodes": "strategies",
    "PipelineParallelAcrossNodes": "strategies",
    "TensorParallelSingleNode": "strategies",
    "HybridTensorPipeline": "strategies",
    "SlurmConfig": "slurm_jobs",
    "SlurmJobFactory": "slurm_jobs",
    "SlurmJobManager": "slurm_job_manager",
    "DistributedExperimentPipeline": "pipeline",
    "ResultCollector": "collector",
    "CorrectnessEvaluator": "correctness",
    "RunSummary": "summary",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
