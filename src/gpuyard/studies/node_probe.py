"""Send a small job to a node, to see whether a study's jobs can run there."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuyard.domain.errors import Fault, GpuyardError
from gpuyard.studies.cluster_checks import ClusterFindings
from gpuyard.studies.failures import find_failure
from gpuyard.studies.job_places import factory_of, manager_of
from gpuyard.studies.left_files import read_left_object
from gpuyard.studies.manifest import ManifestEntry
from gpuyard.studies.runtime.probe import RESULT
from gpuyard.studies.strategies import ParallelismStrategy
from gpuyard.studies.tables import replace_file

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.studies.study import Study

_NAME = "probe"
_JOB_S = 300.0
_IMPORTS = {
    "torch": ("torch", "safetensors", "tokenizers"),
    "deepspeed": ("torch", "deepspeed", "transformers"),
    "vllm": ("torch", "vllm"),
    "vllm_server": ("torch", "vllm"),
    "sglang": ("torch", "sglang"),
    "tensorrt_llm": ("torch", "tensorrt_llm"),
}
"""What each engine imports on a node."""


class _NodeReport(msgspec.Struct, frozen=True):
    """What the job says of its node: see `runtime.probe.look`."""

    host: str
    executable: str
    missing: dict[str, str]
    models: dict[str, bool]
    gpus: list[str]


def probe_node(
    study: "Study", client: "Client", provider: str, wait_s: float
) -> ClusterFindings:
    """Run a job of one process on one node, and return what was wrong there.

    If it has not ended after `wait_s` seconds it is taken back, and a warning says so.
    """
    entry = _write_job(study, provider)
    manager = manager_of(study, client, provider)
    try:
        manager.submit(entry, _NAME, _JOB_S)
        if not entry.over:
            manager.monitor([entry], lambda: None, wait_s)
        if not entry.over:
            client.job(entry.gpuyard_job or "").cancel()
            warning = (
                f"the probe job was {entry.state} after {wait_s:g} s and was taken"
                " back: nothing is known of the nodes"
            )
            return ClusterFindings(warnings=(warning,))
    except GpuyardError as error:
        return ClusterFindings(warnings=(f"no node was looked at: {error}",))
    return _findings(study, entry)


def _write_job(study: "Study", provider: str) -> ManifestEntry:
    """Write the folder of the job, without that of an earlier one."""
    run = study.runs / _NAME
    shutil.rmtree(run, ignore_errors=True)
    # A job that needs little time need not wait long.
    slurm = study.slurm.model_copy(update={"time_limit": _JOB_S})
    study = study.model_copy(update={"slurm": slurm})
    factory = factory_of(provider)(study, run)
    factory.entry = "probe.py"
    factory.copy_runtime()
    # An engine that starts its own processes is started by one.
    strategy = ParallelismStrategy(name=_NAME, engine="vllm")
    factory.write(strategy, _NAME, {}, (), None)
    path = factory.config_path(_NAME)
    engines = [one.engine or study.generation.engine for one in study.strategies]
    imports = [name for engine in engines for name in _IMPORTS[engine]]
    rounded = [one.quantized_model for one in study.strategies if one.quantized_model]
    more = {
        "imports": list(dict.fromkeys(imports)),
        "models": [str(folder) for folder in (study.model.path, *rounded)],
    }
    config = json.loads(path.read_text()) | more
    replace_file(path, json.dumps(config, indent=2).encode())
    root = factory.output_root(_NAME)
    # Each look is a job of its own.
    number = time.time_ns()
    return ManifestEntry(_NAME, _NAME, _NAME, str(path), str(root), attempt=number)


def _findings(study: "Study", entry: ManifestEntry) -> ClusterFindings:
    """Say what the job found on its node, or why it found nothing."""
    found = _read_report(Path(entry.output_root))
    if found is None:
        return ClusterFindings(faults=(_did_not_run(study, entry),))
    faults = tuple(_faults(study, found))
    return ClusterFindings(faults, tuple(_warnings(study, found)))


def _did_not_run(study: "Study", entry: ManifestEntry) -> Fault:
    """Return the fault of a job that left nothing, with its last words."""
    log = Path(entry.slurm_out) if entry.slurm_out else None
    failure = find_failure(Path(entry.output_root), log, entry.reason or "")
    said = "; ".join(failure.lines[-3:]) or entry.reason or "it left nothing"
    fault = f"{study.slurm.python!r} did not run on a node: {said}"
    return Fault("slurm.python", fault, failure.advice)


def _faults(study: "Study", found: _NodeReport) -> Iterator[Fault]:
    for name, why in found.missing.items():
        fault = f"{found.executable} cannot import {name} on {found.host}: {why}"
        yield Fault("slurm.python", fault, "install it there, or name another one")
    for path, is_there in found.models.items():
        if not is_there:
            fault = f"{path} is not there on {found.host}"
            remedy = "put it on a file system that all nodes share"
            yield Fault("model.path", fault, remedy)
    needs_gpus = study.slurm.gres and study.generation.device == "cuda"
    if needs_gpus and not found.gpus:
        fault = f"is cuda, but NVIDIA's driver shows no GPU on {found.host}"
        yield Fault("generation.device", fault, "look at `nvidia-smi` in a job")


def _warnings(study: "Study", found: _NodeReport) -> Iterator[str]:
    """Yield what is odd about a node."""
    _, _, gpu_type = study.slurm.gres.partition(":")
    wanted = gpu_type.lower()
    is_there = any(wanted in name.lower() for name in found.gpus)
    if wanted and found.gpus and not is_there:
        yield (
            f"slurm.gres asks for {gpu_type!r}, and {found.host} has"
            f" {', '.join(dict.fromkeys(found.gpus))}"
        )


def _read_report(folder: Path) -> _NodeReport | None:
    """What the job left; None where that is nothing, or nothing that can be read."""
    try:
        return msgspec.convert(read_left_object(folder, RESULT), _NodeReport)
    except (OSError, ValueError):
        return None
