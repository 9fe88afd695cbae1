"""A model card in Hugging Face's format, filled from a job: its metadata as YAML, then
a text for people.

It says what is known of the run. What nobody has said, such as the licence, it calls
unknown.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpuyard.domain.artifacts import Artifact
from gpuyard.domain.jobs import Job
from gpuyard.domain.units import format_duration

# What begins a tag, a link, an image, code or an entity in Markdown.
_MARKS = re.compile(r"[\\`<\[\]&]")


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What the job does not say itself. `data` are names of published data sets."""

    license: str = "unknown"
    base_model: str | None = None
    data: Sequence[str] = ()
    tags: Sequence[str] = field(default=())


def model_card(job: Job, artifacts: Sequence[Artifact], facts: CardFacts) -> str:
    """The text of `README.md`."""
    metadata = _metadata(job, facts)
    # JSON is YAML, and quotes whatever a name may hold.
    lines = [f"{key}: {json.dumps(value)}" for key, value in metadata.items()]
    sections = [
        _about(job, facts),
        _table("Results", ("metric", "last value"), _results(job)),
        _table("Run", ("", ""), _run(job)),
        _table("Files", ("file", "bytes", "SHA-256"), _files(artifacts)),
    ]
    text = "\n".join(section for section in sections if section)
    return "---\n" + "\n".join(lines) + "\n---\n\n" + text


def _metadata(job: Job, facts: CardFacts) -> dict[str, Any]:
    """Keys that have nothing to say are left out."""
    given = {
        "license": facts.license,
        "tags": [*dict.fromkeys(["gpuyard", *facts.tags])],
        "datasets": [*dict.fromkeys([*_dataset_names(job), *facts.data])],
        "metrics": sorted(job.progress.metrics),
        "base_model": facts.base_model,
    }
    return {key: value for key, value in given.items() if value}


def _dataset_names(job: Job) -> list[str]:
    spec = job.spec or {}
    return [str(each).partition("@")[0] for each in spec.get("datasets", ())]


def _about(job: Job, facts: CardFacts) -> str:
    words = [f"# {_words(job.name)}", ""]
    begun = f" from {_code(facts.base_model)}" if facts.base_model else ""
    words.append(f"Made{begun} by the job `{job.id}` of gpuyard, which {job.state}.")
    spec = job.spec or {}
    if spec.get("datasets"):
        read = ", ".join(_code(str(each)) for each in spec["datasets"])
        words.append(f"It read {read}.")
    if facts.license == "unknown":
        words.append("The licence is not known: say it before you publish this model.")
    return "\n".join(words) + "\n"


def _results(job: Job) -> list[tuple[str, ...]]:
    found = sorted(job.progress.metrics.items())
    return [(_words(name), f"{value:.6g}") for name, value in found]


def _run(job: Job) -> list[tuple[str, ...]]:
    spec: Mapping[str, Any] = job.spec or {}
    last = job.attempts[-1] if job.attempts else None
    code = job.code
    commit = code.commit if code else ""
    if code and code.dirty:
        commit = f"{commit} with changes"
    ran_s = sum(attempt.ran_s or 0.0 for attempt in job.attempts)
    ended = datetime.fromtimestamp(job.ended_at, UTC) if job.ended_at else None
    rows = {
        "command": shlex.join(spec.get("command", ())),
        "steps": str(job.progress.step or ""),
        "epochs": f"{job.progress.epoch:g}" if job.progress.epoch else "",
        "commit": commit,
        "place": last.provider if last else "",
        "GPUs": str(len(last.gpus)) if last and last.gpus else "",
        "time": format_duration(ran_s) if ran_s else "",
        "ended": f"{ended:%Y-%m-%d %H:%M} UTC" if ended else "",
        "cost": f"{job.cost.amount} {job.cost.currency}" if job.cost.amount else "",
    }
    said = [(name, _code(text)) for name, text in rows.items() if text]
    return said + [(link.tracker, _address(link.url)) for link in job.progress.links]


def _files(artifacts: Sequence[Artifact]) -> list[tuple[str, ...]]:
    return [
        (_code(each.path), str(each.size), _code(each.sha256)) for each in artifacts
    ]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A section with a table; empty without rows."""
    if not rows:
        return ""
    lines = [f"## {title}", "", _line(columns), _line(["---"] * len(columns))]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in cells) + " |"


def _plain(text: str) -> str:
    """In one line."""
    return " ".join(text.split())


def _words(text: str) -> str:
    """Shown as it is: a job names itself and its metrics, and others publish them."""
    return _MARKS.sub(r"\\\g<0>", _plain(text))


def _code(text: str) -> str:
    """As code, which ends at no backtick of the text."""
    line = _plain(text)
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}"


def _address(url: str) -> str:
    """A link that says where it leads."""
    return f"<{url.replace('<', '%3C').replace('>', '%3E')}>"
