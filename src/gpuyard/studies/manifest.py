"""The manifest of a run: its jobs and their states, in one file.

The file is replaced as a whole after every change.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gpuyard.domain.errors import InvalidInputError, NotFoundError
from gpuyard.studies.strategies import StrategyJobEnd
from gpuyard.studies.tables import replace_file

FILE = "manifest.json"
DONE = "COMPLETED"
OVER = frozenset({DONE, "FAILED", "TIMEOUT", "PARTIAL"})


@dataclass(slots=True)
class ManifestEntry:
    """One job of a strategy.

    `status` is PENDING until Slurm accepts the job and SUBMITTED until it ends, then
    COMPLETED, FAILED, TIMEOUT or PARTIAL (only some of its rows exist). `job_status`
    and `job_reason` describe how the job itself ended; `status` and `reason` take its
    results into account too. `failure` tells why it failed: see `JobFailure`.

    `job_id` is Slurm's number and `gpuyard_job` ours. Times are UTC seconds;
    `elapsed_s` and `max_rss_bytes` come from Slurm. `overrides` are the values of a
    sweep. A failed entry is `set_aside` when its strategy is tried again.
    `model_fingerprint` is of the model's files when the job was written.
    """

    strategy_id: str
    strategy: str
    kind: str
    exp_config_path: str
    output_root: str
    job_id: int | None = None
    gpuyard_job: str | None = None
    status: str = "PENDING"
    reason: str | None = None
    state: str | None = None
    elapsed_s: float | None = None
    max_rss_bytes: float | None = None
    slurm_out: str | None = None
    attempt: int = 1
    submitted_at: float | None = None
    ended_at: float | None = None
    overrides: dict[str, int] = field(default_factory=dict[str, int])
    set_aside: bool = False
    job_status: str | None = None
    job_reason: str | None = None
    failure: dict[str, Any] | None = None
    model_fingerprint: str = ""

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.status in OVER

    def end(self, status: str, reason: str | None, ended_at: float) -> None:
        """Record the end of the job."""
        self.status = status
        self.reason = reason
        self.ended_at = ended_at
        self.job_status = status
        self.job_reason = reason


@dataclass(slots=True)
class RunManifest:
    """A run and its jobs.

    It holds the hash of the study's file, the variants of prompts, the selected
    strategies (none: all), the provider, and the entries in the order of submission.
    Only the newest entry of a strategy id counts; earlier ones are failed tries.

    `asked` has what the study asks of each job: `model_path`, `max_new_tokens`,
    `repeats` and `load`. It is empty in manifests of earlier versions.
    """

    path: Path
    run_id: str
    study: str
    study_sha256: str
    created_at: float
    variants: tuple[str, ...]
    limit: int | None = None
    only: tuple[str, ...] = ()
    provider: str = "slurm"
    asked: dict[str, Any] = field(default_factory=dict[str, Any])
    entries: list[ManifestEntry] = field(default_factory=list[ManifestEntry])

    def save(self) -> None:
        """Write it whole or not at all."""
        replace_file(self.path, json.dumps(self.document(), indent=2).encode())

    def document(self) -> dict[str, Any]:
        """Return the manifest as a JSON object."""
        return {
            **{name: getattr(self, name) for name in _HEAD},
            "entries": [asdict(entry) for entry in self.entries],
        }

    @classmethod
    def load(cls, run: Path) -> "RunManifest":
        """Read the manifest in a run's folder.

        NotFoundError when there is none, InvalidInputError when it is damaged.
        """
        path = run / FILE
        try:
            found = json.loads(path.read_text())
            known = {item.name for item in fields(ManifestEntry)}
            entries = [
                ManifestEntry(
                    **{key: value for key, value in row.items() if key in known}
                )
                for row in found["entries"]
            ]
            # Manifests of earlier versions name no provider: it was Slurm.
            known_head: dict[str, Any] = {"provider": "slurm", "asked": {}, **found}
            head: dict[str, Any] = {name: known_head[name] for name in _HEAD}
            head |= {"variants": tuple(head["variants"]), "only": tuple(head["only"])}
            return cls(path, entries=entries, **head)
        except FileNotFoundError:
            raise NotFoundError(
                f"There is no run in {run}.", "`gpuyard study run` makes one."
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInputError.of(
                str(path), f"is damaged: {error}", "start a new run"
            ) from None

    def of(self, strategy: str) -> list[ManifestEntry]:
        """The jobs of a strategy so far."""
        return [entry for entry in self.entries if entry.strategy == strategy]

    def outcomes(self, strategy: str) -> list[StrategyJobEnd]:
        """Return the outcomes from which a strategy chooses its next job."""
        return [
            StrategyJobEnd(entry.overrides, entry.status, entry.attempt)
            for entry in self.of(strategy)
            if not entry.set_aside
        ]

    def newest(self) -> Mapping[str, ManifestEntry]:
        """Return the newest entry of each strategy id."""
        return {entry.strategy_id: entry for entry in self.entries}


_HEAD = (
    "run_id",
    "study",
    "study_sha256",
    "created_at",
    "variants",
    "limit",
    "only",
    "provider",
    "asked",
)


def newest_run(folder: Path) -> Path:
    """Return the folder of the newest run; NotFoundError when there is none."""
    runs = runs_of(folder)
    if not runs:
        raise NotFoundError(
            "This study has no run yet.", "`gpuyard study run` makes one."
        )
    return runs[-1]


def runs_of(folder: Path) -> Sequence[Path]:
    """The runs of a study, oldest first."""
    return sorted(path.parent for path in folder.glob(f"run_*/{FILE}"))
