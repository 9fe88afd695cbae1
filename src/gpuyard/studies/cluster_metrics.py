"""The table of metrics, from `metrics_rank_<rank>.json` and Slurm's accounting."""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from gpuyard.studies.left_files import shown
from gpuyard.studies.shards import ResultShard

_TEXT = pa.string()
_COUNT = pa.int64()
_REAL = pa.float64()
_YES = pa.bool_()
_ABSURD = 2.0**63
_MEASURED: tuple[tuple[str, pa.DataType], ...] = (
    ("dp_rank", _COUNT),
    ("pp_rank", _COUNT),
    ("tp_rank", _COUNT),
    ("host", _TEXT),
    ("device", _TEXT),
    ("gpu_id", _TEXT),
    ("gpu_name", _TEXT),
    ("engine_version", _TEXT),
    ("torch_version", _TEXT),
    ("rows", _COUNT),
    ("complete", _YES),
    ("load_s", _REAL),
    ("bytes_read", _COUNT),
    ("bytes_share", _REAL),
    ("peak_memory_bytes", _COUNT),
    ("prompts", _COUNT),
    ("tokens_generated", _COUNT),
    ("generate_s", _REAL),
    ("tokens_per_s", _REAL),
    ("compute_s", _REAL),
    ("communication_s", _REAL),
    ("avg_latency_ms", _REAL),
    ("gpu_utilization", _REAL),
    ("gpu_memory_bytes", _COUNT),
    ("energy_j", _REAL),
    ("started_at", _REAL),
    ("ended_at", _REAL),
    ("error", _TEXT),
)
_ACCOUNTED: tuple[tuple[str, pa.DataType], ...] = (
    ("state", _TEXT),
    ("elapsed_s", _REAL),
    ("max_rss_bytes", _COUNT),
)
_CONFIGURED: tuple[tuple[str, pa.DataType], ...] = (
    ("num_nodes", _COUNT),
    ("gpus_per_node", _COUNT),
    ("tp_size", _COUNT),
    ("pp_size", _COUNT),
    ("dp_size", _COUNT),
    ("world_size", _COUNT),
    ("engine", _TEXT),
    ("quantization", _TEXT),
    ("precision", _TEXT),
    ("batch_size", _COUNT),
)
SCHEMA = pa.schema(
    [
        ("strategy_id", _TEXT),
        ("rank", _COUNT),
        *_MEASURED,
        ("variant_s", pa.map_(_TEXT, _REAL)),
        *_ACCOUNTED,
        *_CONFIGURED,
    ]
)
"""One row per (strategy_id, rank), also for ranks that left nothing. Sizes in bytes,
`_s` in seconds, times in UTC seconds. `variant_s` is how long the rank's batches of
each variant took together.
"""


def metric_rows(
    strategy_id: str,
    config: Mapping[str, Any],
    entry: Mapping[str, Any],
    shards: Iterable[ResultShard],
) -> list[dict[str, Any]]:
    """Rows of SCHEMA. A figure that is missing, absurd or of another type is null."""
    shared = {name: _as(kind, entry.get(name)) for name, kind in _ACCOUNTED}
    shared |= {name: _as(kind, config.get(name)) for name, kind in _CONFIGURED}
    rows: list[dict[str, Any]] = []
    for shard in shards:
        measured = shard.footer or {}
        figures = {name: _as(kind, measured.get(name)) for name, kind in _MEASURED}
        figures["complete"] = figures["complete"] or False
        seconds = _variant_seconds(measured.get("batches"))
        rows.append(
            {
                "strategy_id": strategy_id,
                "rank": shard.rank,
                **figures,
                "variant_s": seconds,
                **shared,
            }
        )
    return rows


def _variant_seconds(batches: object) -> list[tuple[str, float]]:
    seconds: dict[str, float] = {}
    for batch in cast(Sequence[object], batches) if isinstance(batches, list) else ():
        if isinstance(batch, dict):
            values = cast(dict[str, Any], batch)
            variant = values.get("variant")
            taken = _as(_REAL, values.get("latency_ms"))
            if isinstance(variant, str) and taken is not None:
                seconds[variant] = seconds.get(variant, 0.0) + taken / 1000
    return list(seconds.items())


def _as(kind: pa.DataType, value: object) -> Any:
    """`value` where it is of this kind, else None; an empty text tells nothing."""
    if kind == _YES:
        return value if isinstance(value, bool) else None
    if kind == _TEXT:
        return None if value is None else shown(value) or None
    if isinstance(value, str):
        value = _moment(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # NaN is not below it, either.
    if not abs(value) < _ABSURD:
        return None
    return float(value) if kind == _REAL else int(value)


def _moment(text: str) -> float | None:
    """UTC seconds of a time in ISO 8601."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
