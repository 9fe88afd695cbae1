"""Prometheus metrics, read off the instance when asked: nothing is counted twice."""

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
        self._visibility = visibility
        self._job_counts = job_counts

    def collect(self) -> Iterable[Metric]:
        """Jobs by state, live attempts, nodes, GPUs, commits, providers, webhooks."""
        core = self._app_state.controller.core
        jobs = GaugeMetricFamily("gpuyard_jobs", "Jobs by state", labels=["state"])
        for state in JobState:
            jobs.add_metric([state.value], self._job_counts.get(state.value, 0))
        yield jobs
        attempts = [
            attempt
            for attempt in core.view.attempts.values()
            if self._visibility.sees(core.view.jobs[attempt.job_id].project)
        ]
        prompts = sum(bool(core.view.jobs[a.job_id].shape.model) for a in attempts)
        yield GaugeMetricFamily(
            "gpuyard_attempts_live",
            "Attempts that are live, without those of prompts",
            len(attempts) - prompts,
        )
        yield GaugeMetricFamily(
            "gpuyard_prompts_live",
            "Prompts that wait in the queue of their model or are being answered",
            prompts,
        )
        nodes = GaugeMetricFamily("gpuyard_nodes", "Nodes by state", labels=["state"])
        for state in sorted({node.state for node in core.view.nodes.values()}):
            nodes.add_metric(
                [state], sum(node.state == state for node in core.view.nodes.values())
            )
        yield nodes
        busy = {
            uuid
            for a in core.view.attempts.values()
            for place in a.placements
            for uuid in place.gpu_uuids
        }
        present = [uuid for uuid, device in core.view.devices.items() if device.node_id]
        gpus = GaugeMetricFamily("gpuyard_gpus", "GPUs by use", labels=["use"])
        gpus.add_metric(["busy"], len(busy))
        gpus.add_metric(["free"], len(set(present) - busy))
        yield gpus
        yield CounterMetricFamily(
            "gpuyard_ledger_commits",
            "Commits since the server started",
            core.writer.commits,
        )
        yield from _providers(self._app_state.controller.health)
        if self._app_state.notifier:
            yield _deliveries(self._app_state.notifier.outcomes)
            yield _dead_letters(self._app_state.notifier)


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
