"""`python -m benchmarks.page`: make docs/benchmarks.md of `page.md` and of `results/`.

`page.md` is the prose, with a line `<!-- PLACE -->` for each table. `results/` has what
was measured last: files `PLACE.json` and `PLACE.NAME.json`, which only the commands
with `--write` put there. `tests/unit/test_benchmarks.py` refuses a page that was
changed by hand.
"""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.bench import ROOT, fdatasync_ms, scratch
from benchmarks.figures import Figure, Rows, markdown, markdown_table

PAGE = ROOT / "docs" / "benchmarks.md"
TEMPLATE = Path(__file__).with_name("page.md")
RESULTS = Path(__file__).with_name("results")
HEAD = (
    "<!-- `python -m benchmarks.page` makes this page of benchmarks/page.md and"
    " benchmarks/results/. -->\n"
)


# --- what was measured ---


def measured_by(command: str) -> str:
    """After which command, when and on what machine something is measured now."""
    return (
        f"Measured by `{command}` on {_today()} at commit {_commit()}, on {machine()}."
        " In the minute before, the load of the machine was"
        f" {os.getloadavg()[0]:.2f}."
    )


def computed_by(command: str) -> str:
    """After which command something is computed that no machine changes."""
    return (
        f"Computed by `{command}` on {_today()} at commit {_commit()}; the same on"
        " every machine."
    )


def command_line(target: str, words: Sequence[str]) -> str:
    """How one writes this command with make."""
    return f'make {target} ARGS="{" ".join(words)}"' if words else f"make {target}"


def machine() -> str:
    """A few words about this machine."""
    processors = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", processors, re.MULTILINE)
    kind = model[1] if model else "processor unknown"
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    with scratch() as folder:
        synced_ms = fdatasync_ms(folder)
    return (
        f"{os.cpu_count()} cores ({kind}), {memory_gb:.0f} GB, where 4 kB are appended"
        f" and synced in {synced_ms:.2f} ms"
    )


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _commit() -> str:
    """The commit that is measured, whether or not other results have just come."""
    measured = ["--", ".", ":!benchmarks/results", ":!docs/benchmarks.md"]
    changes = _git("status", "--porcelain", *measured)
    return _git("rev-parse", "--short", "HEAD") + (" with changes" if changes else "")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def store_figures(name: str, measured: str, figures: Sequence[Figure]) -> None:
    """Keep figures with all their rounds, and make the page anew."""
    _store(name, measured, {"figures": [_rounded(asdict(one)) for one in figures]})


def store_table(name: str, measured: str, rows: Rows) -> None:
    """Keep a table, and make the page anew."""
    _store(name, measured, {"rows": rows})


def _store(name: str, measured: str, content: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"measured": measured, **content}, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(f"{text}\n")
    PAGE.write_text(page())


def _rounded(figure: dict[str, Any]) -> dict[str, Any]:
    """Four digits are more than a machine gives twice."""
    for name in ("values", "floors"):
        figure[name] = [float(f"{value:.4g}") for value in figure[name]]
    return figure


# --- the page ---


def page() -> str:
    """The text of docs/benchmarks.md."""
    place = re.compile(r"^<!-- ([\w-]+) -->$", re.MULTILINE)
    return HEAD + place.sub(lambda found: tables(found[1]), TEMPLATE.read_text())


def tables(place: str) -> str:
    """What stands at a place: a table of each run, below where it is from."""
    paths = sorted(RESULTS.glob(f"{place}.*json"))
    results = [json.loads(path.read_text()) for path in paths]
    runs = groupby(results, lambda result: str(result["measured"]))
    texts = [f"{measured}\n\n{_table(list(run))}" for measured, run in runs]
    return "\n\n".join(texts) or "Not measured yet."


def _table(results: Sequence[dict[str, Any]]) -> str:
    if "rows" in results[0]:
        return "\n\n".join(markdown_table(result["rows"]) for result in results)
    return markdown(Figure(**one) for result in results for one in result["figures"])


if __name__ == "__main__":
    PAGE.write_text(page())
