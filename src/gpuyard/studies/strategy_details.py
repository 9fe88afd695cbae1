"""Everything about one strategy of a run, for people and programs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gpuyard.domain.errors import NotFoundError
from gpuyard.studies.left_files import read_left_object
from gpuyard.studies.manifest import ManifestEntry, RunManifest
from gpuyard.studies.strategies import ParallelismStrategy, strategies_of
from gpuyard.studies.study import Study

_OPTIONS = (
    "precision",
    "batch_size",
    "micro_batches",
    "max_new_tokens",
    "temperature",
    "seed",
    "device",
)


def details_of(study: Study, manifest: RunManifest, name: str) -> list[dict[str, Any]]:
    """Return the newest jobs of the strategy with this name or id.

    NotFoundError when the run has none.
    """
    layouts = {each.name: each for each in strategies_of(study)}
    found = [
        _details(entry, layouts.get(entry.strategy))
        for entry in manifest.newest().values()
        if name in (entry.strategy, entry.strategy_id)
    ]
    if not found:
        known = ", ".join(manifest.newest()) or "none yet"
        raise NotFoundError(
            f"{manifest.run_id} has no strategy {name!r}.", f"There are: {known}."
        )
    return found


def _details(
    entry: ManifestEntry, layout: ParallelismStrategy | None
) -> dict[str, Any]:
    config = _read(Path(entry.exp_config_path))
    options = [f"{name} {config[name]}" for name in _OPTIONS if name in config]
    return {
        "strategy_id": entry.strategy_id,
        "name": entry.strategy,
        "layout": layout.describe_topology() if layout else None,
        "engine": config.get("engine"),
        "engine_options": _listed(config.get("engine_options")),
        "quantization": config.get("quantization"),
        "options": ", ".join(options),
        "status": entry.status,
        "attempt": entry.attempt,
        "slurm_job": entry.job_id,
        "job": entry.gpuyard_job,
        "seconds": entry.elapsed_s,
        "reason": entry.reason,
        "log": entry.slurm_out,
        "folder": entry.output_root,
        "failure": entry.failure,
    }


def _listed(options: Any) -> str | None:
    if not isinstance(options, dict):
        return None
    told = cast(Mapping[str, Any], options)
    return ", ".join(f"{name} {value}" for name, value in told.items()) or None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return read_left_object(path.parent, path.name)
    except (OSError, ValueError):
        return {}
