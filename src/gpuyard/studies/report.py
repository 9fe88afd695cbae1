"""Write the report of a run: one HTML page with the table, the plots and all inputs."""

# pandas has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false, reportAttributeAccessIssue=false
import hashlib
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gpuyard import __version__
from gpuyard.storage.archive import beside, replace
from gpuyard.studies import plot_style
from gpuyard.studies.correctness import ALL, CorrectnessEvaluator
from gpuyard.studies.left_files import open_left
from gpuyard.studies.manifest import RunManifest
from gpuyard.studies.markdown import columns, load_table
from gpuyard.studies.prompts import PromptFileSet, PromptRepository
from gpuyard.studies.study import FILE, Study
from gpuyard.studies.summary import RunSummary
from gpuyard.studies.truth import load_truth

_MOST_DIVERGENCES = 300
_MOST_TEXT = 64 << 10
_MOST_TEXT_IN_ALL = 4 << 20
_AROUND = 60
_TEXT_COLUMNS = ("strategy", "variant", "status", "answers are")
_HARDWARE = (
    "host",
    "device",
    "gpu_name",
    "engine",
    "engine_version",
    "torch_version",
    "precision",
    "quantization",
)


@dataclass(frozen=True, slots=True)
class Divergence:
    """An answer that differs from its reference: where, and both texts from there."""

    strategy_id: str
    prompt_id: str
    variant: str
    beside: str
    unit: str
    place: int
    agreement: float
    expected: str
    got: str


class StudyReport:
    """Writes `summary_run_<ts>.html`."""

    def __init__(self, summary: RunSummary, run: Path | None = None) -> None:
        """Show `summary`, and with `run` (the run's folder) also its files."""
        self._summary = summary
        self._run = run

    def html(self) -> str:
        """The page. Whatever comes from files is text in it, never markup."""
        summary = self._summary
        home = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        shown = columns(summary)
        divergences = list(self._divergences())
        return home.get_template("report.html.j2").render(
            summary=summary,
            ranking=summary.ranking,
            document=summary.document,
            columns=list(shown),
            text_columns=_TEXT_COLUMNS,
            rows=[
                (row, {name: show(row) for name, show in shown.items()})
                for row in summary.rows
            ],
            all=ALL,
            loads=load_table(summary),
            most_plotted=plot_style.MOST,
            plots=[(plot, Markup(plot.svg)) for plot in summary.build_plots()],
            headlines=list(self._headlines()),
            divergences=divergences[:_MOST_DIVERGENCES],
            divergences_in_all=len(divergences),
            files=list(self._files()),
            hardware=self._hardware(),
            options=self._options(),
            version=__version__,
        )

    def write(self, path: Path) -> Path:
        """Write the page; `path` is the file or the folder for it."""
        path = path / f"summary_{self._summary.run_id}.html" if path.is_dir() else path
        with beside(path) as fresh:
            fresh.write_text(self.html(), encoding="utf-8", errors="replace")
            replace(fresh, path)
        return path

    def _options(self) -> str:
        """Return the options with which `gpuyard study run` was called."""
        document = self._summary.document
        words = [
            word for name in document.get("only") or () for word in ("--only", name)
        ]
        variants = document.get("variants") or ()
        limit = document.get("limit")
        words += ["--variant", variants[0]] if len(variants) == 1 else []
        words += ["--limit", str(limit)] if limit else []
        return "".join(f" {shlex.quote(str(word))}" for word in words)

    def _headlines(self) -> Iterator[tuple[str, str]]:
        """The figures of the best strategy, in words."""
        best = next(
            (
                row
                for row in self._summary.strategies
                if row["strategy_id"] == self._summary.ranking.best
            ),
            None,
        )
        if best is None:
            return
        yield "tokens per second", f"{best['tokens_per_s']:,.1f}"
        yield "median latency", f"{best['latency_ms_p50']:,.0f} ms"
        yield "p90 latency", f"{best['latency_ms_p90']:,.0f} ms"
        agreement = best.get(self._summary.primary)
        if agreement is not None and math.isfinite(agreement):
            yield "agreement", f"{agreement:.1%}"
        if best.get("cost") is not None:
            yield "cost of the run", f"{best['cost']:,.2f} {self._summary.currency}"
        elif best.get("gpu_hours") is not None:
            yield "GPU-hours of the run", f"{best['gpu_hours']:,.3f}"
        if best.get("peak_memory_gib") is not None:
            yield "most memory of a rank", f"{best['peak_memory_gib']:,.2f} GiB"

    def _divergences(self) -> Iterator[Divergence]:
        """Answers that differ from the reference, or else from the peer."""
        results = self._summary.results.set_index(
            ["strategy_id", "variant", "prompt_id"]
        )
        answers = results["cluster_completion"].to_dict()
        baselines = (
            results["local_completion"].to_dict()
            if "local_completion" in results
            else {}
        )
        for row in self._summary.scores.to_dict("records"):
            key = row["strategy_id"], row["variant"], row["prompt_id"]
            if row["peer_exact"] == 0:
                reference = answers.get((row["peer"], *key[1:]))
                names = ("peer", "peer_unit", "peer_divergence", "peer_agreement")
                beside_what, unit, place, agreement = (row[name] for name in names)
            elif row["reference"] == "baseline" and row["exact_match"] == 0:
                reference = baselines.get(key)
                names = ("reference", "unit", "first_divergence", "token_agreement")
                beside_what, unit, place, agreement = (row[name] for name in names)
            else:
                continue
            if not math.isfinite(place):
                continue
            expected, got = _from_difference(str(reference), str(answers[key]))
            yield Divergence(
                strategy_id=row["strategy_id"],
                prompt_id=row["prompt_id"],
                variant=row["variant"],
                beside=beside_what,
                unit=unit,
                place=int(place),
                agreement=agreement,
                expected=expected,
                got=got,
            )

    def _files(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield each strategy's configuration and script.

        The study's file comes first, if it has not changed since the run.
        """
        if self._run is None:
            return
        study = self._run.parent.parent / FILE
        if _sha256(study) == self._summary.document.get("study_sha256"):
            found = study.resolve()
            yield "study", [(FILE, _read(found.parent, found.name))]
        left = _MOST_TEXT_IN_ALL
        for one in self._summary.collected:
            folder = self._run / one["strategy_id"]
            texts = [
                (name, _read(folder, name) if left > 0 else f"see {folder / name}")
                for name in ("exp_config.json", "job.slurm", "job.sh")
            ]
            left -= sum(len(text) for _, text in texts)
            yield one["strategy_id"], [(name, text) for name, text in texts if text]

    def _hardware(self) -> list[dict[str, Any]]:
        """Return the hosts, devices and versions of each strategy's ranks."""
        metrics = self._summary.metrics[self._summary.metrics["host"].notna()]
        rows: list[dict[str, Any]] = []
        for strategy_id, ranks in metrics.groupby("strategy_id", sort=False):
            found = {name: _distinct(ranks[name]) for name in _HARDWARE}
            name = self._summary.label(str(strategy_id))
            rows.append({"strategy": name, "ranks": len(ranks)} | found)
        return rows


def load_summary(study: Study, manifest: RunManifest) -> RunSummary:
    """The figures of a run, by what the study wants of its report."""
    wanted = study.report
    summary = RunSummary.load(
        study.results,
        manifest.run_id,
        evaluator=_evaluator(study),
        objective=wanted.objective,
        max_p90_ms=wanted.latency_limit_ms,
        price_per_gpu_hour=wanted.price_per_gpu_hour,
        currency=wanted.currency,
        rank_quantized=wanted.rank_quantized,
    )
    # Why jobs failed is known only after their results were collected.
    entries = manifest.document()["entries"]
    summary.document = {**summary.document, "entries": entries}
    return summary


def write_report(
    study: Study, manifest: RunManifest, summary: RunSummary
) -> Sequence[Path]:
    """Write the report as CSV, Markdown and HTML; return the three paths."""
    results = study.results
    table = summary.to_csv(results)
    summary.to_markdown(results)
    return [
        table,
        table.with_suffix(".md"),
        StudyReport(summary, manifest.path.parent).write(results),
    ]


def _evaluator(study: Study) -> CorrectnessEvaluator:
    records = PromptRepository(PromptFileSet.of(study)).load_all()
    truth = load_truth(study.prompts.truth, records) if study.prompts.truth else None
    baseline = (
        (study.baseline.answers_as or study.baseline.model) if study.baseline else None
    )
    folder = study.report.embedding_model
    return CorrectnessEvaluator(
        truth,
        baseline_model=baseline,
        study_model=study.model.name,
        embedding_model=str(folder) if folder else None,
    )


def _distinct(values: Any) -> str:
    names = list(dict.fromkeys(str(value) for value in values.dropna()))
    return ", ".join(names[:8]) + (
        f" and {len(names) - 8} more" if len(names) > 8 else ""
    )


def _from_difference(expected: str, got: str) -> tuple[str, str]:
    """Return both texts around the first character that differs."""
    same = next(
        (
            at
            for at, (one, other) in enumerate(zip(expected, got, strict=False))
            if one != other
        ),
        min(len(expected), len(got)),
    )
    start = max(0, same - _AROUND // 3)
    return _excerpt(expected, start), _excerpt(got, start)


def _excerpt(text: str, start: int) -> str:
    end = start + _AROUND
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _read(folder: Path, name: str) -> str:
    try:
        with open_left(folder, name) as file:
            text = file.read(_MOST_TEXT + 1).decode("utf-8", errors="replace")
    except OSError:
        return ""
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n… (cut)"
