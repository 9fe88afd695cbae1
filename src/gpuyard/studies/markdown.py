"""Write a run's summary as Markdown: best strategy, table, failures, warnings."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuyard.studies.failures import JobFailure
from gpuyard.studies.run_table import RunTable

LABELS = {
    "exact_match": "exact match",
    "token_agreement": "agreement",
    "edit_similarity": "edit similarity",
    "bleu": "BLEU",
    "chrf": "chrF",
    "rouge_l": "ROUGE-L",
    "embedding_similarity": "embeddings",
    "peer_exact": "same as peer",
    "peer_agreement": "agreement with peer",
}

# Links, pictures, code and emphasis; a word may have an underscore.
_MARKUP = re.compile(r"([\\`*\[\]]|^[#>])")
_LEADING = ("exact_match", "token_agreement", "peer_agreement")


def figure(value: Any, digits: int = 0, unit: str = "") -> str:
    """A number for people, or a dash where there is none."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    return f"{value:,.{digits}f}{unit}"


def share(row: Mapping[str, Any], name: str) -> str:
    """Format a mean from 0 to 1; the leading scores with interval: `0.93 (0.88–0.97)`.

    The CSV has all intervals.
    """
    low = figure(row.get(f"{name}_low"), 2)
    high = figure(row.get(f"{name}_high"), 2)
    mean = figure(row.get(name), 2)
    return mean if low == "–" or name not in _LEADING else f"{mean} ({low}–{high})"


def _throughput(row: Mapping[str, Any]) -> str:
    """Format tokens/s, with the interval of its mean if they were measured again."""
    low = figure(row.get("tokens_per_s_low"), 1)
    high = figure(row.get("tokens_per_s_high"), 1)
    mean = figure(row["tokens_per_s"], 1)
    return mean if low == "–" else f"{mean} ({low}–{high})"


def columns(summary: RunTable) -> dict[str, Callable[[Mapping[str, Any]], str]]:
    """Return the columns of the table, each with a function that formats a row's value.

    Columns without any value are left out.
    """
    shares = {
        label: (name, partial(share, name=name)) for name, label in LABELS.items()
    }
    money = f"cost, {summary.currency}"
    every: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
        "strategy": (
            "strategy_id",
            lambda row: summary.label(row["strategy_id"]),
        ),
        "variant": ("variant", lambda row: row["variant"]),
        "status": ("status", lambda row: row["status"]),
        "answers are": ("answers_are", lambda row: row.get("answers_are") or "–"),
        "GPUs": ("gpus", lambda row: figure(row["gpus"])),
        "answers": ("prompts", lambda row: f"{row['prompts']} / {row['expected']}"),
        **shares,
        "tokens/s": ("tokens_per_s", _throughput),
        "same when repeated": (
            "repeats_same",
            lambda row: figure(_percent(row.get("repeats_same")), 0, " %"),
        ),
        "prompts/s": ("prompts_per_s", lambda row: figure(row["prompts_per_s"], 2)),
        "p50, ms": ("latency_ms_p50", lambda row: figure(row["latency_ms_p50"])),
        "p90, ms": ("latency_ms_p90", lambda row: figure(row["latency_ms_p90"])),
        "p99, ms": ("latency_ms_p99", lambda row: figure(row["latency_ms_p99"])),
        "first token, ms": ("ttft_ms_p50", lambda row: figure(row["ttft_ms_p50"])),
        "wall clock, s": ("wall_s", lambda row: figure(row.get("wall_s"), 1)),
        "GPU-hours": ("gpu_hours", lambda row: figure(row.get("gpu_hours"), 3)),
        money: ("cost", lambda row: figure(row.get("cost"), 4)),
        "GPU-h per M tokens": (
            "gpu_hours_per_million",
            lambda row: figure(row.get("gpu_hours_per_million"), 1),
        ),
        f"{money} per M tokens": (
            "cost_per_million",
            lambda row: figure(row.get("cost_per_million"), 2),
        ),
        "most memory, GiB": (
            "peak_memory_gib",
            lambda row: figure(row.get("peak_memory_gib"), 2),
        ),
        "GPUs busy": (
            "gpu_utilization",
            lambda row: figure(_percent(row.get("gpu_utilization")), 0, " %"),
        ),
        "J per token": (
            "energy_per_token_j",
            lambda row: figure(row.get("energy_per_token_j"), 2),
        ),
        "communication": (
            "communication_share",
            lambda row: figure(_percent(row.get("communication_share")), 0, " %"),
        ),
        "speed-up": ("speed_up", lambda row: figure(row.get("speed_up"), 2)),
        "efficiency": ("efficiency", lambda row: figure(row.get("efficiency"), 2)),
    }
    return {
        label: show
        for label, (name, show) in every.items()
        if any(_is_there(row.get(name)) for row in summary.rows)
    }


def load_table(summary: RunTable) -> list[dict[str, str]]:
    """Return the figures under load, formatted, a row for each strategy and rate."""
    rows: list[dict[str, str]] = []
    for strategy_id, loads in summary.loads.items():
        for one in loads:
            row = {
                "strategy": summary.label(strategy_id),
                "requests/s": figure(one["rate"], 2),
                "answered/s": figure(one["requests_per_s"], 2),
                "goodput/s": figure(one["goodput"], 2),
                "tokens/s": figure(one["tokens_per_s"], 1),
            }
            for name in ("ttft", "tpot"):
                for share_of in ("p50", "p90", "p99"):
                    value = one[f"{name}_ms_{share_of}"]
                    row[f"{name.upper()} {share_of}, ms"] = figure(value, 1)
            rows.append(row)
    return rows


def _load(summary: RunTable) -> str:
    rows = load_table(summary)
    if not rows:
        return ""
    table = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in table]
    return "\n".join(["## Under load", "", *lines])


def markdown_page(summary: RunTable) -> str:
    """The whole page."""
    shown = columns(summary)
    table = [
        list(shown),
        ["---"] * len(shown),
        *([show(row) for show in shown.values()] for row in summary.rows),
    ]
    parts = [
        f"# {_plain(str(summary.document.get('study') or 'Study'))}, {summary.run_id}",
        (
            f"**Best ({summary.ranking.objective.value}{summary.ranking.limit}):**"
            f" {_plain(summary.ranking.reason)}"
        ),
        "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in table),
        _load(summary),
        _list(
            "Answers not right",
            [f"{summary.label(name)}: {why}" for name, why in summary.ranking.wrong],
        ),
        _list(
            "What failed",
            [
                f"{summary.label(one['strategy_id'])} is {one['status']}: {reason}"
                for one in summary.collected
                for reason in one["reasons"]
            ],
        ),
        *(_failure(summary.label(name), one) for name, one in summary.failures.items()),
        _list(
            "Not ranked",
            [f"{summary.label(name)}: {why}" for name, why in summary.ranking.left_out],
        ),
        _list("Beware", list(summary.warnings)),
        _plain(summary.baseline),
        (
            "Intervals hold the mean with 95 % (bootstrap over prompts). Speed-up and"
            " efficiency are beside the smallest layout of the run."
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = [f"- {_plain(line)}" for line in lines]
    return f"## {title}\n\n" + "\n".join(items)


def _failure(name: str, failure: JobFailure) -> str:
    """Show the last lines of a job that failed, their file, and what to do."""
    where = f", {failure.where}" if failure.where else ""
    title = f"### {_plain(name)}{_plain(where)}"
    lines = [line.replace("```", "` ` `") for line in failure.lines]
    quoted = "\n".join(["```text", *lines, "```"]) if lines else ""
    log = f"Log: {_plain(failure.log)}" if failure.log else ""
    advice = f"What to do: {_plain(failure.advice)}."
    return "\n\n".join(part for part in (title, quoted, log, advice) if part)


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """One line, in which nothing is markup."""
    line = _MARKUP.sub(r"\\\1", " ".join(text.split()))
    return line.replace("<", "&lt;")


def _percent(value: Any) -> Any:
    return value * 100 if isinstance(value, int | float) else value


def _is_there(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, int | float) and math.isfinite(value)
    )
