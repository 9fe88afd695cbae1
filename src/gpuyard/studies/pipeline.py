"""Run a study, strategy after strategy, from prompts to tables.

All state is in the run's manifest, so a run that was killed can be resumed.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.config.locks import is_locked, lock_exclusively
from gpuyard.domain.errors import InvalidInputError, NotFoundError
from gpuyard.studies.baseline import LocalInferenceRunner
from gpuyard.studies.failures import find_failure
from gpuyard.studies.manifest import DONE, ManifestEntry, RunManifest, newest_run
from gpuyard.studies.prompts import (
    PromptDataFrameBuilder,
    PromptFileSet,
    PromptRepository,
    TokenCounter,
)
from gpuyard.studies.slurm_job_manager import SlurmJobManager
from gpuyard.studies.slurm_jobs import SlurmJobFactory
from gpuyard.studies.strategies import ParallelismStrategy, strategies_of
from gpuyard.studies.study import VARIANTS, Study, Variant

if TYPE_CHECKING:
    from pandas import DataFrame

    from gpuyard.client.sync import Client
    from gpuyard.studies.collector import ResultCollector

Tell = Callable[[RunManifest], None]
_LOCK = ".lock"


class DistributedExperimentPipeline:
    """Runs a study through a gpuyard instance.

    `tell` is called with the manifest after each change.
    """

    def __init__(
        self,
        study: Study,
        client: "Client",
        *,
        provider: str = "slurm",
        tell: Tell = lambda _: None,
    ) -> None:
        self.study = study
        self.strategies = strategies_of(study)
        self._tell = tell
        self.client = client
        self._manager = SlurmJobManager(client, provider)
        self._collector: ResultCollector | None = None
        self._is_alone = False

    @contextmanager
    def alone(self) -> Generator[None]:
        """Hold the study's lock; InvalidInputError when another process holds it.

        A manifest that is read under the lock stays current.
        """
        if self._is_alone:
            yield
            return
        with alone(self.study):
            self._is_alone = True
            try:
                yield
            finally:
                self._is_alone = False

    # --- beginning ---

    def begin(
        self,
        only: Sequence[str] = (),
        variants: Sequence[Variant] = VARIANTS,
        limit: int | None = None,
    ) -> RunManifest:
        """A new run: its folder, with the prompts and the program.

        NotFoundError for a strategy that is not there.
        """
        self.chosen(only)
        with self.alone():
            return self._begin(only, variants, limit)

    def _begin(
        self, only: Sequence[str], variants: Sequence[Variant], limit: int | None
    ) -> RunManifest:
        now = time.time()
        run_id = datetime.fromtimestamp(now, UTC).strftime("run_%Y%m%dT%H%M%S")
        run = self.study.runs / run_id
        if run.exists():
            raise InvalidInputError.of(
                "run",
                f"{run_id} is there already",
                "wait a second, or `gpuyard study resume`",
            )
        frame = self._prompts(variants, limit)
        PromptDataFrameBuilder.persist(frame, run / "prompts.parquet")
        SlurmJobFactory(self.study, run).copy_runtime()
        name = self.study.directory.name
        manifest = RunManifest(
            run / "manifest.json",
            run_id,
            name,
            self.study.sha256,
            now,
            tuple(variants),
            limit,
            tuple(only),
        )
        manifest.save()
        return manifest

    def _prompts(self, variants: Sequence[Variant], limit: int | None) -> "DataFrame":
        """The prompts of a run, with what the baseline has answered so far."""
        repository = PromptRepository(PromptFileSet.of(self.study))
        frame = PromptDataFrameBuilder(repository, TokenCounter.of(self.study)).build(
            variants, limit
        )
        return (
            LocalInferenceRunner.of(self.study).attach_metrics(frame)
            if self.study.baseline
            else frame
        )

    def newest(self) -> RunManifest:
        """The run to go on with; NotFoundError where there is none."""
        return RunManifest.load(newest_run(self.study.runs))

    def reopen(self, manifest: RunManifest) -> None:
        """Allow failed jobs to be tried again."""
        if manifest.study_sha256 != self.study.sha256:
            fault = f"has changed since {manifest.run_id} began"
            raise InvalidInputError.of(
                "study.toml", fault, "put it back, or start a new run"
            )
        with self.alone():
            for entry in manifest.newest().values():
                if entry.over and entry.status != DONE:
                    entry.set_aside = True
            manifest.save()

    def chosen(self, only: Sequence[str]) -> list[ParallelismStrategy]:
        """Return the strategies with these names or ids, or all when none are named.

        NotFoundError for an unknown name.
        """
        short = self.study.model.short_name
        known = {
            name
            for each in self.strategies
            for name in (each.name, each.strategy_id(short))
        }
        if strange := [name for name in only if name not in known]:
            names = ", ".join(each.name for each in self.strategies)
            raise NotFoundError(
                f"There is no strategy {strange[0]!r} in this study.",
                f"There are: {names}.",
            )
        return [
            each
            for each in self.strategies
            if not only or {each.name, each.strategy_id(short)} & set(only)
        ]

    # --- running ---

    def run(
        self,
        manifest: RunManifest,
        only: Sequence[str] = (),
        *,
        fail_fast: bool = False,
    ) -> bool:
        """Run the strategies one after the other; True when all of them completed.

        A strategy that fails stops the others only with `fail_fast`.
        """
        well = True
        with self.alone():
            for strategy in self.chosen(only):
                well = self.run_strategy(manifest, strategy) and well
                if fail_fast and not well:
                    break
        return well

    def run_strategy(
        self, manifest: RunManifest, strategy: ParallelismStrategy
    ) -> bool:
        """Run all jobs of a strategy; True when each of its points has completed.

        Jobs that are already under way are awaited first.
        """
        for entry in manifest.of(strategy.name):
            self._see_out(manifest, entry)
        while (
            overrides := strategy.next_config(manifest.outcomes(strategy.name))
        ) is not None:
            entry = self._new_entry(manifest, strategy, overrides)
            self._see_out(manifest, entry)
        done = [
            entry.overrides
            for entry in manifest.of(strategy.name)
            if entry.status == DONE
        ]
        return all(point in done for point in strategy.points)

    def _new_entry(
        self,
        manifest: RunManifest,
        strategy: ParallelismStrategy,
        overrides: Mapping[str, int],
    ) -> ManifestEntry:
        factory = SlurmJobFactory(self.study, manifest.path.parent)
        name = strategy.strategy_id(self.study.model.short_name, overrides)
        tries = sum(entry.strategy_id == name for entry in manifest.entries)
        entry = ManifestEntry(
            name,
            strategy.name,
            strategy.kind,
            str(factory.config_path(name)),
            str(factory.output_root(name)),
            attempt=tries + 1,
            overrides=dict(overrides),
        )
        # The folder comes first: once the entry is there, the job may have been
        # submitted, and be writing in it.
        factory.write(strategy, name, overrides, manifest.variants, manifest.limit)
        manifest.entries.append(entry)
        self._changed(manifest)
        return entry

    def _see_out(self, manifest: RunManifest, entry: ManifestEntry) -> None:
        """Submit a job if necessary, wait for its end and collect its results.

        A PENDING job may have been submitted before a crash; submitting again finds it.
        """
        if entry.over:
            return
        if entry.status == "PENDING":
            self._manager.submit(entry, manifest.run_id, self.study.slurm.time_limit)
            self._changed(manifest)
        self._manager.monitor(entry, lambda: self._changed(manifest))
        self._manager.collect_artifacts(
            entry, lambda over: self.collect(manifest, over)
        )
        self._changed(manifest)

    def _changed(self, manifest: RunManifest) -> None:
        manifest.save()
        self._tell(manifest)

    # --- results ---

    def collect(self, manifest: RunManifest, entry: ManifestEntry) -> None:
        """Add a job's results to the tables, with those of the jobs before it.

        A job that says it completed may still have left no results.
        """
        from gpuyard.studies.collector import ResultCollector

        if self._collector is None:
            self._collector = ResultCollector(manifest.path.parent, self.study.results)
            for before in manifest.newest().values():
                if before.over and before is not entry:
                    _ingest(self._collector, manifest, before)
        _ingest(self._collector, manifest, entry)


def _ingest(
    collector: "ResultCollector", manifest: RunManifest, entry: ManifestEntry
) -> None:
    """Set an entry's status from how its job ended and what it wrote."""
    entry.status = entry.job_status or entry.status
    entry.reason = entry.job_reason
    found = collector.ingest_strategy(entry.strategy_id, manifest.document())
    # What the job said of its end is among the reasons.
    entry.status = found.status
    entry.reason = "; ".join(found.reasons) or None
    entry.failure = None if entry.status == DONE else _failure_of(entry)


def _failure_of(entry: ManifestEntry) -> dict[str, Any]:
    log = Path(entry.slurm_out) if entry.slurm_out else None
    failure = find_failure(Path(entry.output_root), log, entry.reason or "")
    return asdict(failure)


def collect_results(study: Study, manifest: RunManifest) -> None:
    """Read the results of all jobs of a run again."""
    from gpuyard.studies.collector import ResultCollector

    collector = ResultCollector(manifest.path.parent, study.results)
    for entry in manifest.newest().values():
        if entry.over:
            _ingest(collector, manifest, entry)
    manifest.save()


def is_running(study: Study) -> bool:
    """Return whether a process works on the study."""
    return is_locked(study.directory / _LOCK)


@contextmanager
def alone(study: Study) -> Generator[None]:
    """Hold the study's lock; InvalidInputError when another process holds it."""
    with (study.directory / _LOCK).open("w") as file:
        try:
            lock_exclusively(file)
        except BlockingIOError:
            raise InvalidInputError.of(
                "study", "is running in another process", "wait, or end that one"
            ) from None
        yield
