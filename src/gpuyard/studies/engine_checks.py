"""Find layouts and options that a strategy's engine does not have."""

from gpuyard.domain.errors import Fault
from gpuyard.studies.runtime.server_commands import SERVERS
from gpuyard.studies.strategies import ParallelismStrategy

SERVING = ("vllm", *SERVERS)
"""Engines that are made to serve; they divide a model as vLLM does."""
_TAKES_QUANTIZATION = ("vllm", "vllm_server", "sglang")
_LAYOUTS = {
    "deepspeed": ("pp", "dp"),
    "vllm": ("dp",),
    "tensorrt_llm": ("dp",),
}
"""The sizes that must be 1, by engine."""
_HAVE = {
    "pp": "torch or vllm",
    "dp": "torch, vllm_server or sglang",
}
_SET_BY_THE_STUDY = {
    "model": "model.path",
    "model_path": "model.path",
    "dtype": "generation.precision",
    "seed": "generation.seed",
    "random_seed": "generation.seed",
    "max_num_seqs": "generation.batch_size",
    "max_running_requests": "generation.batch_size",
    "max_batch_size": "generation.batch_size",
    "tensor_parallel_size": "tp",
    "tp_size": "tp",
    "pipeline_parallel_size": "pp",
    "pp_size": "pp",
    "data_parallel_size": "dp",
    "dp_size": "dp",
    "quantization": "quantization",
    "nnodes": "nodes",
    "host": "",
    "port": "",
}


def engine_faults(
    strategy: ParallelismStrategy, engine: str, field: str
) -> list[Fault]:
    """Find a size of the layout that the engine does not have."""
    sizes = {"pp": strategy.pp_size, "dp": strategy.dp_size}
    where = f"{field}.engine" if strategy.engine else "generation.engine"
    faults = [
        Fault(
            f"{field}.{name}",
            f"is {sizes[name]}, but the engine {engine} has no {name} beyond 1",
            f"set it to 1, or {where} to {_HAVE[name]}",
        )
        for name in _LAYOUTS.get(engine, ())
        if sizes[name] > 1
    ]
    if strategy.num_nodes == 1:
        return faults
    if engine == "tensorrt_llm":
        fault = f"is {strategy.num_nodes}, but gpuyard starts {engine} on one node only"
        faults.append(Fault(f"{field}.nodes", fault, "set it to 1"))
    elif engine in SERVERS and strategy.dp_size > 1:
        fault = f"is {strategy.dp_size}, but replicas of {engine} stay on one node"
        faults.append(Fault(f"{field}.dp", fault, "set it or nodes to 1"))
    return faults


def load_faults(engine: str, field: str) -> list[Fault]:
    """Refuse a load on vLLM's class for batches: users would meet its server."""
    if engine != "vllm":
        return []
    fault = "is vllm, which is not measured under [load]"
    return [Fault(f"{field}.engine", fault, "choose vllm_server, or remove [load]")]


def option_faults(
    strategy: ParallelismStrategy, engine: str, field: str
) -> list[Fault]:
    """Find options that the engine does not take, or that the study sets itself."""
    faults: list[Fault] = []
    options = strategy.engine_options
    if options and engine not in SERVING:
        fault = f"has options, but the engine {engine} takes none"
        remedy = f"remove them, or choose an engine of {', '.join(SERVING)}"
        faults.append(Fault(f"{field}.engine_options", fault, remedy))
    for name in options:
        if name in _SET_BY_THE_STUDY:
            setting = _SET_BY_THE_STUDY[name]
            remedy = f"use {setting}" if setting else "remove it"
            where = f"{field}.engine_options.{name}"
            faults.append(Fault(where, "is set by the study", remedy))
    if strategy.quantization and engine not in _TAKES_QUANTIZATION:
        fault = f"is {strategy.quantization!r}, but {engine} does not round weights"
        remedy = f"choose an engine of {', '.join(_TAKES_QUANTIZATION)}"
        if engine in SERVING:
            remedy = "name a folder with rounded weights as quantized_model"
        faults.append(Fault(f"{field}.quantization", fault, remedy))
    if strategy.quantized_model and engine not in SERVING:
        fault = f"is set, but the engine {engine} reads no rounded weights"
        remedy = f"choose an engine of {', '.join(SERVING)}"
        faults.append(Fault(f"{field}.quantized_model", fault, remedy))
    has_own_name = strategy.name != strategy.kind
    if (options or strategy.quantized_model) and not has_own_name:
        fault = "is missing; options and rounded weights are told apart by it"
        faults.append(Fault(f"{field}.name", fault, "give the strategy a name"))
    return faults
