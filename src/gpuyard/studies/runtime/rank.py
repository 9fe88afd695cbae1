# pyright: basic, reportMissingImports=false
"""Run one rank: join the others, load the model, answer, write rows and metrics."""

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from .communicator import Communicator, agree, initialize_distributed_environment
from .deepspeed_engine import DeepSpeedEngine
from .errors import RunError
from .experiment import Experiment
from .generated_answer import GeneratedAnswer, row_of
from .generation_loop import BatchDone, InferenceEngine, run_generation_loop
from .gpu_meter import GpuMeter, gpus_of_rank
from .launch import LaunchedProcess, Mesh, configure_parallel_groups
from .load_run import run_load
from .outputs import RankReport, RepeatWriter, ShardWriter, finalize_rank
from .profiling import profiling
from .prompts import Prompt, batches_of, prepare_prompt_shard, rotate
from .server_engine import ServerEngine
from .tokenizer import ModelTokenizer
from .torch_engine import TorchEngine
from .vllm_engine import OfflineVllmEngine


def run_rank(
    experiment: Experiment, launch: LaunchedProcess, report: RankReport
) -> None:
    """Do this rank's share of an experiment.

    Raises `RunError`, the same on every rank, when it cannot be done.
    """
    mesh = configure_parallel_groups(experiment, launch)
    report.dp_rank = mesh.dp_rank
    report.pp_rank = mesh.pp_rank
    report.tp_rank = mesh.tp_rank
    shard = ShardWriter(experiment, launch)
    if experiment.engine == "vllm":
        # It starts its own workers from rank 0; what else the launcher started has
        # nothing to do.
        if launch.rank == 0:
            mesh = Mesh(0, 0, 0, 1, 1, 1)
            report.device = "cuda" if experiment.device == "auto" else experiment.device
            engine = OfflineVllmEngine(experiment)
            _answer_all(experiment, launch, mesh, engine, shard, report)
        if launch.world_size == 1:
            _report_workers(experiment, launch, report)
    elif experiment.is_served:
        _serve(experiment, launch, mesh, shard, report)
    else:
        device = initialize_distributed_environment(experiment, launch)
        _describe(report, device)
        communicator = Communicator(mesh, device)
        kind = TorchEngine if experiment.engine == "torch" else DeepSpeedEngine
        engine = kind(experiment, communicator)
        _answer_all(experiment, launch, mesh, engine, shard, report)
    report.peak_memory_bytes = _peak_memory(report)
    report.complete = True


def _serve(
    experiment: Experiment,
    launch: LaunchedProcess,
    mesh: Mesh,
    shard: ShardWriter,
    report: RankReport,
) -> None:
    """Run this node's part of a server; the first node also asks it."""
    engine = ServerEngine(experiment, launch)
    report.device = "cuda" if experiment.device == "auto" else experiment.device
    report.engine = engine.name
    if launch.rank > 0:
        engine.serve_until_done()
        return
    try:
        _answer_all(experiment, launch, mesh, engine, shard, report)
    finally:
        engine.close()
    _report_workers(experiment, launch, report)


def _answer_all(
    experiment: Experiment,
    launch: LaunchedProcess,
    mesh: Mesh,
    engine: InferenceEngine,
    shard: ShardWriter,
    report: RankReport,
) -> None:
    """Load the model and answer the prompts of this replica."""
    began = time.perf_counter()
    tokenizer, prompts = together(lambda: _prepare(experiment, mesh, engine))
    report.load_s = time.perf_counter() - began
    report.engine = engine.name
    report.engine_version = engine.version
    report.bytes_read = engine.bytes_read
    report.bytes_share = engine.bytes_share
    engine.warm_up()
    before = engine.communication_s() or 0.0
    make_row = partial(
        row_of,
        rank=report.rank,
        strategy_id=experiment.strategy_id,
        decode=tokenizer.decode,
    )
    with profiling(
        experiment, report.rank, cuda=report.device.startswith("cuda")
    ) as after_batch:

        def keep(done: BatchDone) -> None:
            after_batch()
            shard.persist_rank_outputs(done, report, is_output=mesh.is_output)

        meter = _meter(experiment, launch, report)
        meter.start()
        seconds = run_generation_loop(
            engine, batches_of(prompts, experiment.batch_size), make_row, keep
        )
        report.measured(meter.stop())
    communicated_s = engine.communication_s()
    report.spent(seconds, None if communicated_s is None else communicated_s - before)
    report.passes.append({"seconds": seconds, "tokens": report.tokens_generated})
    if experiment.load:
        every = prepare_prompt_shard(
            experiment, Mesh(0, 0, 0, 1, 1, 1), tokenizer.encode
        )
        path = experiment.load_path(launch.rank)
        run_load(experiment, mesh, engine, every, path)
    if experiment.repeats > 1:
        writer = RepeatWriter(experiment, launch) if mesh.is_output else None
        _answer_again(experiment, engine, prompts, make_row, writer, report)


def _answer_again(
    experiment: Experiment,
    engine: InferenceEngine,
    prompts: list[Prompt],
    make_row: Callable[[GeneratedAnswer, int], dict[str, Any]],
    writer: RepeatWriter | None,
    report: RankReport,
) -> None:
    """Answer all prompts again, each time in other batches.

    A prompt then has other neighbours and other padding, so numbers are rounded in
    another way. What changes by that is the noise floor of the layout.
    """
    for repeat in range(1, experiment.repeats):
        turned = rotate(prompts, repeat)
        tokens = 0

        def keep(done: BatchDone, repeat: int = repeat) -> None:
            nonlocal tokens
            if writer is not None:
                tokens += sum(row["tokens_generated"] for row in done.rows)
                writer.persist(done, repeat)

        batches = batches_of(turned, experiment.batch_size)
        seconds = run_generation_loop(engine, batches, make_row, keep)
        report.passes.append({"seconds": seconds, "tokens": tokens})


def _report_workers(
    experiment: Experiment, launch: LaunchedProcess, report: RankReport
) -> None:
    """Write an empty shard and metrics for each worker that an engine started.

    The workers write no files. The metrics have the times of the driver.
    """
    for rank in range(launch.world_size, experiment.world_size):
        ShardWriter(experiment, replace(launch, rank=rank))
        finalize_rank(experiment.metrics_path(rank), report.of_worker(rank))


def together(work: Callable[[], Any]) -> Any:
    """Call `work`, and raise the same `RunError` on all ranks if one fails."""
    result = None
    fault = None
    try:
        result = work()
    except RunError as error:
        fault = str(error)
    except Exception as error:  # noqa: BLE001  # told to all ranks, which would otherwise wait for this one
        fault = f"{type(error).__name__}: {error}"
    agree(fault)
    return result


def _prepare(
    experiment: Experiment, mesh: Mesh, engine: InferenceEngine
) -> tuple[ModelTokenizer, list[Prompt]]:
    engine.load()
    tokenizer = ModelTokenizer(experiment.model_path)
    return tokenizer, prepare_prompt_shard(experiment, mesh, tokenizer.encode)


def _describe(report: RankReport, device: torch.device) -> None:
    """Record the device of this rank.

    `gpu_id` is the host's name of the device, if the launcher names it.
    """
    report.device = str(device)
    report.torch_version = torch.__version__
    if device.type == "cuda":
        visible = [
            part
            for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            if part
        ]
        index = device.index or 0
        report.gpu_id = visible[index] if index < len(visible) else str(index)
        report.gpu_name = torch.cuda.get_device_name(device)


def _meter(
    experiment: Experiment, launch: LaunchedProcess, report: RankReport
) -> GpuMeter:
    """Return what measures the GPUs of this rank.

    A process that drives GPUs of several nodes sees only its own, so it measures none.
    """
    has_all = report.device == "cuda"
    if report.device == "cpu" or (has_all and experiment.num_nodes > 1):
        return GpuMeter.of_nothing()
    gpus = gpus_of_rank(os.environ, launch.local_rank, has_all=has_all)
    return GpuMeter(gpus)


def _peak_memory(report: RankReport) -> int:
    """Return the peak memory in bytes of the GPU, or else of this process."""
    if report.device.startswith("cuda:"):
        return torch.cuda.max_memory_allocated(report.device)
    if report.gpu_memory_bytes is not None:
        return report.gpu_memory_bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
