"""Take the answers that are to be checked from a run's tables."""

# pandas has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from gpuyard.studies.agreement import Key, StrategyAnswer
from gpuyard.studies.answer_check import RunAnswers
from gpuyard.studies.correctness import CorrectnessEvaluator

_COLUMNS = (
    "variant",
    "prompt_id",
    "strategy_id",
    "cluster_completion",
    "token_ids",
    "logprobs",
    "runner_up_ids",
    "runner_up_logprobs",
    "finish_reason",
    "prompt_tokens",
    "local_completion",
    "local_token_ids",
    "local_api",
    "local_prompt_tokens",
)


def answers_of_run(
    results: pd.DataFrame,
    metrics: pd.DataFrame,
    strategies: Sequence[str],
    gpus: Mapping[str, int | None],
    evaluator: CorrectnessEvaluator,
    noise_floor: Mapping[str, float],
) -> RunAnswers:
    """Return the answers of the strategies, in this order.

    The endpoint's answers count as a baseline only if it was asked for completions of
    the same model, and made the same tokens of the prompts: a chat puts marks around
    each prompt.
    """
    ok = results[results["status"] == "ok"]
    names = [name for name in _COLUMNS if name in ok]
    rows = cast(list[dict[str, Any]], ok[names].to_dict("records"))
    answers: dict[str, dict[Key, StrategyAnswer]] = {name: {} for name in strategies}
    baseline: dict[Key, StrategyAnswer] = {}
    right: dict[Key, str] = {}
    for row in rows:
        key = (str(row["variant"]), str(row["prompt_id"]))
        if row["strategy_id"] in answers and isinstance(row["cluster_completion"], str):
            answers[row["strategy_id"]][key] = _answer(row)
        text = evaluator.right_text(row)
        if text is not None:
            right[key] = text
        local = row.get("local_completion")
        if isinstance(local, str) and row.get("local_api") == "completions":
            ids = _values(row.get("local_token_ids"))
            baseline[key] = StrategyAnswer(local, ids or None)
    is_same = evaluator.is_same_model
    precisions = metrics["precision"].dropna() if "precision" in metrics else []
    return RunAnswers(
        {name: mine for name, mine in answers.items() if mine},
        str(precisions.iloc[0]) if len(precisions) else "bf16",
        unsplit=frozenset(name for name in strategies if gpus.get(name) == 1),
        baseline=baseline if is_same and not other_tokens(results) else None,
        right=right,
        noise_floor=noise_floor,
        quantized=_quantized(metrics),
        baseline_floor=baseline_floor(results),
    )


def baseline_floor(results: pd.DataFrame) -> float | None:
    """Return the share of answers that the baseline gave again, if it was asked."""
    if "local_same" not in results:
        return None
    once = results.drop_duplicates(["variant", "prompt_id"])
    shares = once["local_same"].to_numpy(float)
    known = shares[~np.isnan(shares)]
    return float(known.mean()) if len(known) else None


def other_tokens(results: pd.DataFrame) -> str:
    """Say in how many prompts the endpoint counted other tokens; empty for none.

    `prompt_tokens` is what the study's tokenizer makes of a prompt, whatever a strategy
    states. Only completions are looked at: a chat adds tokens of its own.
    """
    needed = {"local_prompt_tokens", "prompt_tokens", "local_api"}
    if not needed <= set(results.columns):
        return ""
    asked = results[results["local_api"] == "completions"]
    once = asked.drop_duplicates(["variant", "prompt_id"])
    known = once.dropna(subset=["local_prompt_tokens", "prompt_tokens"])
    other = known[known["local_prompt_tokens"] != known["prompt_tokens"]]
    if other.empty:
        return ""
    first = other.iloc[0]
    return (
        f"The baseline's endpoint made other tokens of {len(other)} of"
        f" {len(known)} prompts: of {first['prompt_id']} of {first['variant']}"
        f" {int(first['local_prompt_tokens'])}, and the study's tokenizer"
        f" {int(first['prompt_tokens'])}. Its tokenizer or its model is another one, so"
        " its answers do not tell which strategies are wrong."
    )


def _quantized(metrics: pd.DataFrame) -> frozenset[str]:
    """Return the strategies whose weights are rounded."""
    if "quantization" not in metrics:
        return frozenset()
    rounded = metrics[metrics["quantization"].notna()]
    return frozenset(map(str, rounded["strategy_id"]))


def _answer(row: Mapping[str, Any]) -> StrategyAnswer:
    ids = row.get("token_ids")
    return StrategyAnswer(
        row["cluster_completion"],
        _values(ids) if isinstance(ids, list | np.ndarray) else None,
        _values(row.get("logprobs")),
        _values(row.get("runner_up_ids")),
        _values(row.get("runner_up_logprobs")),
        str(row.get("finish_reason") or ""),
    )


def _values(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value if isinstance(value, list) else []
