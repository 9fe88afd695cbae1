"""Figures of each class, for `gpuyard verify status` and for Prometheus."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuyard.verification.classes import TRAITS
from gpuyard.verification.records import Records
from gpuyard.verification.records.events import EventCount


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The figures of a class: executors ever checked, series, samples and events."""

    gpu_class: str
    executors: int
    series: int
    used: int
    ready: int
    waiting: int
    retired: int
    events: tuple[EventCount, ...]

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to show of the class."""
        return not (
            self.executors
            or self.series
            or self.events
            or self.used + self.ready + self.waiting + self.retired
        )


def figures(records: Records) -> list[ClassFigures]:
    """The figures of every class that has any, in the order of the catalogue."""
    checked = Counter(executor.gpu_class for executor in records.executors())
    found: list[ClassFigures] = []
    for cls in TRAITS:
        counts = records.counts(cls)
        events = tuple(records.event_counts(cls))
        found.append(
            ClassFigures(
                cls.value,
                checked[cls.value],
                counts.series,
                counts.used,
                counts.ready,
                counts.waiting,
                counts.retired,
                events,
            )
        )
    return [one for one in found if not one.quiet]


def render_metrics(records: Records) -> tuple[bytes, str]:
    """The metrics in Prometheus's text format, and its media type."""
    registry = CollectorRegistry()
    registry.register(_Figures(figures(records)))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Figures(Collector):
    def __init__(self, found: Sequence[ClassFigures]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        """Executors, series, samples and events by class."""
        executors = GaugeMetricFamily(
            "gpuyard_verification_executors",
            "Executors ever checked",
            labels=["gpu_class"],
        )
        series = GaugeMetricFamily(
            "gpuyard_verification_series",
            "Series that are sampled",
            labels=["gpu_class"],
        )
        samples = GaugeMetricFamily(
            "gpuyard_verification_samples",
            "Samples kept, by state; used: by a check, ready: "
            "answered and unused, waiting: unanswered",
            labels=["gpu_class", "state"],
        )
        labels = ["gpu_class", "kind", "subtype"]
        events = GaugeMetricFamily(
            "gpuyard_verification_events", "Events kept", labels=labels
        )
        last = GaugeMetricFamily(
            "gpuyard_verification_last_event_timestamp_seconds",
            "When it was last told",
            labels=labels,
        )
        for one in self._found:
            executors.add_metric([one.gpu_class], one.executors)
            series.add_metric([one.gpu_class], one.series)
            for state in ("used", "ready", "waiting", "retired"):
                samples.add_metric([one.gpu_class, state], getattr(one, state))
            for event in one.events:
                events.add_metric(
                    [one.gpu_class, event.kind, event.subtype], event.count
                )
                last.add_metric(
                    [one.gpu_class, event.kind, event.subtype], event.last_at
                )
        return [executors, series, samples, events, last]
