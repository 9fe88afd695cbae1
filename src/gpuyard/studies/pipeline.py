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
from gpuyard.studies.job_places import factory_of, manager_of
from gpuyard.studies.manifest import DONE, ManifestEntry, RunManifest, newest_run
from gpuyard.studies.model_folder import fingerprint
from gpuyard.studies.prompts import (
    PromptDataFrameBuilder,
    PromptFileSet,
    PromptRepository,
    TokenCounter,
)
from gpuyard.studies.strategies import ParallelismStrategy, strategies_of
from gpuyard.studies.study import VARIANTS, Study, Variant

if TYPE_CHECKING:
    from pandas import DataFrame

    from gpuyard.client.sync import Client
    from gpuyard.studies.collector import ResultCollector

Tell = Callable[[RunManifest], None]
_LOCK = ".lock"


class DistributedExperimentPipeline:
    """Runs a study through a gpuyard instance; InvalidInputError if it cannot.

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
        self._provider = provider
        self.client = client
        self._manager = manager_of(study, client, provider)
        self._factory = factory_of(provider)
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
        self._factory(self.study, run).copy_runtime()
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
            self._provider,
            {
                "model_path": str(self.study.model.path),
                "max_new_tokens": self.study.generation.max_new_tokens,
                "repeats": self.study.generation.repeats,
                "load": self.study.load and self.study.load.model_dump(mode="json"),
            },
        )
        # So that a report can be written before the first job is over.
        collect_results(self.study, manifest)
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
        now = fingerprint(self.study.model.path)
        marks = {entry.model_fingerprint for entry in manifest.newest().values()}
        if marks - {"", now}:
            fault = f"has other files than when {manifest.run_id} began"
            raise InvalidInputError.of(
                "model.path", fault, "put them back, or start a new run"
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
        """Run the strategies; True when all of them completed.

        Of their jobs `slurm.max_parallel` are under way at once, in the order of the
        study. A strategy that fails stops the others only with `fail_fast`; jobs that
        are under way then go on to their end.
        """
        return self._run(manifest, self.chosen(only), fail_fast=fail_fast)

    def run_strategy(
        self, manifest: RunManifest, strategy: ParallelismStrategy
    ) -> bool:
        """Run all jobs of a strategy; True when each of its points has completed."""
        return self._run(manifest, [strategy])

    def _run(
        self,
        manifest: RunManifest,
        strategies: Sequence[ParallelismStrategy],
        *,
        fail_fast: bool = False,
    ) -> bool:
        """Run the jobs of strategies. Jobs that are under way already come first."""
        with self.alone():
            under_way = [
                entry
                for strategy in strategies
                for entry in manifest.of(strategy.name)
                if not entry.over
            ]
            for entry in under_way:
                self._submit(manifest, entry)
            while self._fill(manifest, strategies, under_way, fail_fast=fail_fast):
                if not any(entry.over for entry in under_way):
                    self._manager.monitor(under_way, lambda: self._changed(manifest))
                for entry in [entry for entry in under_way if entry.over]:
                    self._manager.collect_artifacts(
                        entry, lambda over: self.collect(manifest, over)
                    )
                    self._changed(manifest)
                    under_way.remove(entry)
        return all(_is_complete(manifest, strategy) for strategy in strategies)

    def _fill(
        self,
        manifest: RunManifest,
        strategies: Sequence[ParallelismStrategy],
        under_way: list[ManifestEntry],
        *,
        fail_fast: bool,
    ) -> bool:
        """Submit jobs while there is room for them; return whether any is under way."""
        while len(under_way) < self.study.slurm.max_parallel:
            found = _next_job(manifest, strategies, fail_fast=fail_fast)
            if found is None:
                break
            entry = self._new_entry(manifest, *found)
            self._submit(manifest, entry)
            under_way.append(entry)
        return bool(under_way)

    def _new_entry(
        self,
        manifest: RunManifest,
        strategy: ParallelismStrategy,
        overrides: Mapping[str, int],
    ) -> ManifestEntry:
        factory = self._factory(self.study, manifest.path.parent)
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
            model_fingerprint=self._fingerprint(strategy),
        )
        # The folder comes first: once the entry is there, the job may have been
        # submitted, and be writing in it.
        factory.write(strategy, name, overrides, manifest.variants, manifest.limit)
        manifest.entries.append(entry)
        self._changed(manifest)
        return entry

    def _fingerprint(self, strategy: ParallelismStrategy) -> str:
        """The fingerprint of the study's model, if the strategy runs that one."""
        if strategy.quantized_model:
            return ""
        return fingerprint(self.study.model.path)

    def _submit(self, manifest: RunManifest, entry: ManifestEntry) -> None:
        """Submit a job, unless it has been submitted.

        A PENDING job may have been submitted before a crash; submitting again finds it.
        """
        if entry.status == "PENDING":
            self._manager.submit(entry, manifest.run_id, self.study.slurm.time_limit)
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
            before = [
                one
                for one in manifest.newest().values()
                if one.over and one is not entry
            ]
            _ingest(self._collector, manifest, before)
        _ingest(self._collector, manifest, [entry])


def _next_job(
    manifest: RunManifest, strategies: Sequence[ParallelismStrategy], *, fail_fast: bool
) -> tuple[ParallelismStrategy, Mapping[str, int]] | None:
    """Return the next job's strategy and overrides, or None when nothing is left.

    With `fail_fast`, nothing is left after a strategy that has failed.
    """
    for strategy in strategies:
        overrides = strategy.next_config(manifest.outcomes(strategy.name))
        if overrides is not None:
            return strategy, overrides
        is_over = all(entry.over for entry in manifest.of(strategy.name))
        if fail_fast and is_over and not _is_complete(manifest, strategy):
            return None
    return None


def _is_complete(manifest: RunManifest, strategy: ParallelismStrategy) -> bool:
    """Whether each point of a strategy has completed."""
    done = [
        entry.overrides for entry in manifest.of(strategy.name) if entry.status == DONE
    ]
    return all(point in done for point in strategy.points)


def _ingest(
    collector: "ResultCollector",
    manifest: RunManifest,
    entries: Sequence[ManifestEntry],
) -> None:
    """Set the status of entries from how their jobs ended and what those wrote."""
    for entry in entries:
        entry.status = entry.job_status or entry.status
        entry.reason = entry.job_reason
    names = [entry.strategy_id for entry in entries]
    collected = collector.ingest_strategies(names, manifest.document())
    for entry, found in zip(entries, collected, strict=True):
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
    over = [entry for entry in manifest.newest().values() if entry.over]
    _ingest(collector, manifest, over)
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
