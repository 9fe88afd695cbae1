"""How fast a strategy answered, from its results and the metrics of its ranks."""

# pandas has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportArgumentType=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportOptionalSubscript=false
# pyright: reportReturnType=false
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gpuyard.studies.correctness import ALL
from gpuyard.studies.repeats import ROUNDED, mean_interval


def pace(results: pd.DataFrame, ranks: pd.DataFrame, variant: str) -> dict[str, Any]:
    """Return the speed figures of a strategy.

    Tokens/s and prompts/s are divided by the slowest rank's generation time. Latency
    percentiles are interpolated linearly. A rank cannot have generated for less time
    than its answers took: then `stated_s` is what it states, and the longer counts.
    """
    ok = results[results["status"] == "ok"]
    stated_s = _generating_s(ranks, variant)
    answers_s = _latency_s(ok)
    is_too_short = bool(stated_s and answers_s and answers_s > ROUNDED * stated_s)
    seconds = answers_s if is_too_short else stated_s or answers_s
    tokens = float(ok["tokens_generated"].sum())
    latency = ok["cluster_latency_ms"].dropna().to_numpy(float)
    points = np.percentile(latency, [50, 90, 99]) if len(latency) else [None] * 3
    ttft = ok["ttft_ms"].dropna()
    return {
        "prompts": len(ok),
        "expected": len(results),
        "tokens": int(tokens),
        "generate_s": seconds,
        "stated_s": stated_s if is_too_short else None,
        "tokens_per_s": tokens / seconds if seconds and tokens else None,
        "prompts_per_s": len(ok) / seconds if seconds and len(ok) else None,
        "latency_ms_mean": float(latency.mean()) if len(latency) else None,
        **{
            f"latency_ms_p{share}": number(value)
            for share, value in zip((50, 90, 99), points, strict=True)
        },
        "ttft_ms_p50": float(ttft.median()) if len(ttft) else None,
    }


def repeated(
    repeats: Mapping[str, Any] | None, tokens_per_s: float | None
) -> dict[str, Any]:
    """Return what repeats tell: the mean throughput with its 95 % interval.

    `repeats_same` is the share of answers of which each token was the same again. The
    throughput of the first pass is also known from its answers (`tokens_per_s`); if
    the passes state a higher one, they do not count.
    """
    if not repeats:
        return {}
    paces = repeats["tokens_per_s"]
    same = {"repeats": repeats["repeats"], "repeats_same": repeats["same"]}
    if not paces:
        return same
    if tokens_per_s is not None and paces[0] > ROUNDED * tokens_per_s:
        return same
    low, high = mean_interval(paces) or (None, None)
    return {
        "tokens_per_s": float(np.mean(paces)),
        "tokens_per_s_low": low,
        "tokens_per_s_high": high,
        **same,
    }


def _generating_s(ranks: pd.DataFrame, variant: str) -> float | None:
    """Return the slowest rank's seconds of generation, in total or for a variant."""
    if variant == ALL:
        return most(ranks["generate_s"])
    batches = [batch for of_rank in ranks["variant_s"].dropna() for batch in of_rank]
    return max((taken for name, taken in batches if name == variant), default=None)


def _latency_s(ok: pd.DataFrame) -> float | None:
    """Estimate the generation time from the answers' latencies.

    Each rank's batches run one after the other, and each takes as long as its slowest
    row. The result is that of the slowest rank.
    """
    if ok.empty:
        return None
    by_batch = ok.groupby(["rank", "variant", "batch"], dropna=False)[
        "cluster_latency_ms"
    ].max()
    return number(by_batch.groupby("rank").sum().max() / 1000)


def most(values: Any) -> float | None:
    """The greatest of a column; None where there is none."""
    return number(values.max()) if len(values) else None


def number(value: Any) -> float | None:
    """A finite number as it is; None for anything else."""
    return float(value) if is_number(value) else None


def is_number(value: Any) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float | np.number) and math.isfinite(value)


def is_missing(value: Any) -> bool:
    """Whether a table has nothing there."""
    return value is None or (isinstance(value, float) and math.isnan(value))
