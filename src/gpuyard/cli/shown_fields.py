"""The fields that `gpuyard show` prints of a job and of an array."""

import shlex
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from gpuyard.cli.listing import HELD
from gpuyard.cli.output import (
    clock,
    cost_parts,
    duration_of,
    money,
    progress_words,
    size,
    task_name,
)
from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.domain.reasons import Reason
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuyard.domain.jobs import Cost, Job

_SHOWN = 5
# How much of a prompt fits in one line of a table.
_PROMPT = 200


def shown_fields(info: "Job", gpus: "Sequence[str]", waits: str = "") -> dict[str, Any]:
    """What `show` prints of a job, by name; `gpus` are those of its last attempt, and
    `waits` says what a pending one waits for.
    """
    spec: dict[str, Any] = info.spec or {}
    return {
        "job": info.id,
        "name": info.name,
        "state": f"{info.state} ({HELD})" if info.held else info.state,
        "task": task_name(info.array_id, info.array_index),
        "reason": _reason(info),
        "waits": waits,
        "exit code": info.exit_code,
        **spec_fields(spec),
        "code": _code(info),
        "environment": _environment(info),
        "packages": _packages(spec),
        "repeats": info.labels.get("rerun_of"),
        "gpus": ", ".join(gpus),
        "labels": ", ".join(f"{name}={value}" for name, value in info.labels.items()),
        "priority": info.priority,
        "deadline": info.deadline and clock(info.deadline),
        "project": info.project,
        "user": info.user,
        "submitted": clock(info.created_at),
        "started": info.started_at and clock(info.started_at),
        "ended": info.ended_at and clock(info.ended_at),
        "ran": duration_of(info),
        "progress": ", ".join(progress_words(info.progress)),
        "trackers": " ".join(link.url for link in info.progress.links),
        "cost": _cost(info.cost),
        "prices": _prices(info.cost),
        "peak memory": (
            f"{info.usage['peak_mb']:.0f} MB" if info.usage.get("peak_mb") else ""
        ),
        "checkpoints": info.checkpoints or "",
        "notes": "; ".join(info.warnings),
    }


def spec_fields(spec: dict[str, Any]) -> dict[str, Any]:
    """What `show` prints of the spec of a job or of an array."""
    return {
        "command": shlex.join(spec.get("command", [])),
        "script": spec.get("script"),
        "model": spec.get("model"),
        "prompt": shorten(spec.get("prompt") or "", _PROMPT, placeholder=" …"),
        "standard input": _input_size(spec),
        "workdir": spec.get("workdir"),
        "needs": _needs(spec),
        "timeout": spec.get("timeout_s") and format_duration(spec["timeout_s"]),
        "retries": spec.get("retry_count"),
        "retries after": ", ".join(spec.get("retry_on", [])),
        "after": ", ".join(spec.get("depends_on", [])),
        "after failed": ", ".join(spec.get("depends_on_failed", [])),
        "after any": ", ".join(spec.get("depends_on_any", [])),
    }


def _reason(info: "Job") -> str | None:
    """The reason, and what it means where no message of an attempt says more."""
    meaning = Reason.meaning_of(info.reason)
    has_message = bool(info.attempts and info.attempts[-1].message)
    if not meaning or has_message:
        return info.reason
    return f"{info.reason}: {meaning}"


def _cost(cost: "Cost") -> str:
    """What it has cost, and by which price; of a prompt, its part of what its model
    costs.
    """
    if cost.share is not None:
        share = money(cost.model_copy(update={"amount": cost.share}))
        return f"{money(cost)} (it took {share} of what its model costs)"
    if cost.tier:
        return f"{money(cost)} ({cost.basis} price of {cost.tier})"
    others = cost_parts(cost)
    return f"{money(cost)} (of it {others})" if others else ""


def _prices(cost: "Cost") -> str:
    """What an hour of each part of a rented machine costs, and who said so when."""
    return "; ".join(
        f"{name} {price:f} {cost.currency} an hour ({cost.price_sources[name]})"
        for name, price in cost.part_prices.items()
        if name in cost.price_sources
    )


def _input_size(spec: dict[str, Any]) -> str:
    """How much the command reads: what it reads may be long, or nobody else's
    business.
    """
    return size(len(spec["stdin"].encode())) if spec.get("stdin") else ""


def _code(info: "Job") -> str:
    """Which code it runs, and what has changed since it was submitted."""
    code = info.code
    if code is None:
        from gpuyard.domain.scripts import script_folder

        is_on_own_node = info.provider in (None, OWN_NODES)
        spec = info.spec or {}
        runs_live = is_on_own_node and (spec.get("workdir") or script_folder(spec))
        return "as it is when the job starts" if runs_live else ""
    if not code.stored:
        return "as submitted; it is no longer stored"
    commit = f", commit {code.commit[:7]}" if code.commit else ""
    commit += " with changes" if code.dirty else ""
    words = [f"as submitted (sha256 {code.digest[:12]}{commit})"]
    if code.changed:
        more = len(code.changed) - _SHOWN
        ending = f" and {more} more" if more > 0 else ""
        words.append(f"changed since: {', '.join(code.changed[:_SHOWN])}{ending}")
    if code.folder:
        words.append(f"ran in {code.folder}")
    return "; ".join(words)


def _packages(spec: dict[str, Any]) -> str:
    """Which packages are installed for it."""
    digest = spec.get("packages")
    if not digest:
        return ""
    return f"as submitted (sha256 {digest[:12]}); `gpuyard record` lists them"


def _environment(info: "Job") -> str:
    """How what it carries differs from the server's own environment, by names."""
    environment = info.environment
    if environment is None:
        spec = info.spec or {}
        place = info.provider or spec.get("provider") or OWN_NODES
        runs_here = place == OWN_NODES and not spec.get("image")
        is_known = info.kind == "command" and spec
        return "the server's own" if is_known and runs_here else ""
    if not environment.stored:
        return "as submitted; it is no longer stored"
    differences = {
        "added": environment.added,
        "missing": environment.missing,
        "changed": environment.changed,
    }
    words = [
        f"{word} {' '.join(names)}" for word, names in differences.items() if names
    ]
    return f"as submitted; to the server's own: {'; '.join(words) or 'no difference'}"


def _needs(spec: dict[str, Any]) -> str:
    """What was asked for, as far as it was said."""
    resources = spec.get("resources", {})
    gpus = resources.get("gpus", {})
    words = [
        f"{gpus['count']} GPU" if gpus.get("count") else "",
        gpus.get("gpu_class", ""),
        f"of {gpus['memory_gb']:g} GB" if gpus.get("memory_gb") else "",
        f"{resources['cpus']:g} cores" if resources.get("cpus") else "",
        f"{resources['memory_gb']:g} GB memory" if resources.get("memory_gb") else "",
        spec.get("tier") or "",
    ]
    return ", ".join(word for word in words if word)
