"""Prometheus metrics, read off the instance when asked: nothing is counted twice."""

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuyard.controller.health import ProviderHealth
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.health import HealthState
from gpuyard.domain.states import JobState
from gpuyard.notify.delivery_result import DeliveryOutcome
from gpuyard.notify.notifier import Notifier
from gpuyard.server.app_state import AppState


class _StateCollector(Collector):
    def __init__(
        self, app_state: AppState, job_counts: Mapping[str, int], visibility: Visibility
    ) -> None:
        self._app_state = app_state
        self._core = app_state.controller.core
        self._visibility = visibility
        self._job_counts = job_counts

    def collect(self) -> Iterable[Metric]:
        """Jobs by state, live attempts, nodes, GPUs, commits, providers, webhooks."""
        yield self._jobs()
        yield from self._attempts()
        yield self._nodes()
        yield self._gpus()
        yield CounterMetricFamily(
            "gpuyard_ledger_commits",
            "Commits since the server started",
            self._core.writer.commits,
        )
        yield from _providers(self._app_state.controller.health)
        if self._app_state.notifier:
            yield _deliveries(self._app_state.notifier.outcomes)
            yield _dead_letters(self._app_state.notifier)

    def _jobs(self) -> Metric:
        jobs = GaugeMetricFamily("gpuyard_jobs", "Jobs by state", labels=["state"])
        for state in JobState:
            jobs.add_metric([state.value], self._job_counts.get(state.value, 0))
        return jobs

    def _attempts(self) -> Iterable[Metric]:
        view = self._core.view
        jobs = [view.jobs[attempt.job_id] for attempt in view.attempts.values()]
        seen = [job for job in jobs if self._visibility.sees(job.project)]
        prompts = sum(bool(job.shape.model) for job in seen)
        yield GaugeMetricFamily(
            "gpuyard_attempts_live",
            "Attempts that are live, without those of prompts",
            len(seen) - prompts,
        )
        yield GaugeMetricFamily(
            "gpuyard_prompts_live",
            "Prompts that wait in the queue of their model or are being answered",
            prompts,
        )

    def _nodes(self) -> Metric:
        nodes = GaugeMetricFamily("gpuyard_nodes", "Nodes by state", labels=["state"])
        counts = Counter(node.state for node in self._core.view.nodes.values())
        for state, count in sorted(counts.items()):
            nodes.add_metric([state], count)
        return nodes

    def _gpus(self) -> Metric:
        view = self._core.view
        busy = {
            uuid
            for attempt in view.attempts.values()
            for placement in attempt.placements
            for uuid in placement.gpu_uuids
        }
        present = {uuid for uuid, device in view.devices.items() if device.node_id}
        gpus = GaugeMetricFamily("gpuyard_gpus", "GPUs by use", labels=["use"])
        gpus.add_metric(["busy"], len(busy))
        gpus.add_metric(["free"], len(present - busy))
        return gpus


def _providers(health: ProviderHealth) -> Iterable[Metric]:
    up = GaugeMetricFamily(
        "gpuyard_provider_up",
        "1 unless checks of the provider fail",
        labels=["provider"],
    )
    for name, known in sorted(health.by_provider.items()):
        up.add_metric([name], known.state is not HealthState.DOWN)
    yield up
    ends = CounterMetricFamily(
        "gpuyard_attempts",
        "Attempts that are over since the server started",
        labels=["provider", "outcome"],
    )
    for (name, outcome), count in sorted(health.ends.items()):
        ends.add_metric([name, outcome], count)
    yield ends


def _deliveries(outcomes: Mapping[DeliveryOutcome, int]) -> Metric:
    told = CounterMetricFamily(
        "gpuyard_webhook_deliveries",
        "What became of webhooks' deliveries",
        labels=["outcome"],
    )
    for outcome in DeliveryOutcome:
        told.add_metric([outcome.value], outcomes[outcome])
    return told


def _dead_letters(notifier: Notifier) -> Metric:
    put_aside = GaugeMetricFamily(
        "gpuyard_webhook_dead_letters",
        "Events that a receiver did not take and that were put aside",
        labels=["webhook"],
    )
    for webhook in notifier.describe():
        put_aside.add_metric([webhook["webhook"]], webhook["dead_letters"]["count"])
    return put_aside


def render_metrics(
    app_state: AppState, job_counts: Mapping[str, int], visibility: Visibility
) -> tuple[bytes, str]:
    """The exposition text and its media type. `job_counts`: the jobs by state that
    exist for who asks; `visibility` says which do.
    """
    registry = CollectorRegistry()
    registry.register(_StateCollector(app_state, job_counts, visibility))
    return generate_latest(registry), CONTENT_TYPE_LATEST
