"""What a notebook shows of a job while it runs: its output, state and curves."""

import html
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from IPython.display import HTML, DisplayHandle

from gpuyard.client.curves import Curve, drawn, sections
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from gpuyard.client.sync_job import JobHandle
    from gpuyard.domain.jobs import Job

# A notebook keeps all that was printed in its file.
_MOST_LINES = 2_000
_MOST_CURVES = 4
_POINTS = 500
# These say what the job uses, and not how it does.
_SYSTEM = "system/"

Series = Mapping[str, Sequence[Mapping[str, Any]]]


class PlainView:
    """For a front end that shows only text: the curves are drawn at the end."""

    def __init__(self) -> None:
        self._lines = 0

    def line(self, text: str) -> None:
        """Show a line of the output."""
        self._lines += 1
        if self._lines < _MOST_LINES:
            # A bar redraws itself with \r: only its last state counts.
            _say(text.rstrip("\r").rsplit("\r", 1)[-1])
        elif self._lines == _MOST_LINES:
            _say(f"… the notebook shows {_MOST_LINES:,} lines; `%gpuyard logs` has all")

    def progress(self, job: "JobHandle") -> None:
        """Show how far the job is."""

    def end(self, job: "JobHandle") -> None:
        """Show how it has ended."""
        for name, curve in curves_of(job).items():
            _say("\n".join([name, *drawn([curve])]))
        _say(summary(job.info))


class RichView(PlainView):
    """For a front end that shows HTML: state and curves stand in one place, which is
    drawn anew while the job runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown: Any = None

    def progress(self, job: "JobHandle") -> None:
        """Draw it anew."""
        words = html.escape(summary(job.info))
        page = HTML(f"<p>{words}</p>{sections(_as_metrics(curves_of(job)))}")
        if self._shown is None:
            self._shown = DisplayHandle()
            self._shown.display(page)
        else:
            self._shown.update(page)

    def end(self, job: "JobHandle") -> None:
        """Draw it for the last time."""
        self.progress(job)


def view_of(shell: Any) -> PlainView:
    """The view for the front end of an IPython shell."""
    shows_html = "text/html" in shell.display_formatter.active_types
    return RichView() if shows_html else PlainView()


def curves_of(job: "JobHandle") -> dict[str, Curve]:
    """The curves that say most, by name: those of losses first."""
    series: Series = job.metrics(points=_POINTS)
    own = [name for name, points in series.items() if _is_drawn(name, points)]
    own.sort(key=lambda name: ("loss" not in name.lower(), name))
    return {
        name: Curve.of("A", job.info.name, job.id, series[name])
        for name in own[:_MOST_CURVES]
    }


def summary(job: "Job") -> str:
    """One line: the job, its state, how far it is, and what it costs."""
    progress = job.progress
    words = [f"job {job.id[-8:]}", str(job.state)]
    if job.exit_code:
        words.append(f"exit code {job.exit_code}")
    elif job.reason and job.state.terminal and job.reason != job.state:
        words.append(job.reason.replace("_", " "))
    if progress.step is not None:
        of = f" of {progress.total}" if progress.total else ""
        words.append(f"step {progress.step}{of}")
    if progress.eta_s and not job.state.terminal:
        words.append(f"{format_duration(progress.eta_s)} left")
    if round(job.cost.amount, 4):
        words.append(f"{job.cost.amount:.4f} {job.cost.currency}")
    return " · ".join(words)


def _is_drawn(name: str, points: Sequence[Mapping[str, Any]]) -> bool:
    return len(points) > 1 and not name.startswith(_SYSTEM)


def _as_metrics(curves: Mapping[str, Curve]) -> dict[str, list[Curve]]:
    return {name: [curve] for name, curve in curves.items()}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
