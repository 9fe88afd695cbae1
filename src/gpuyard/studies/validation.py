"""Check everything about a study that can be checked without running it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from gpuyard.domain.errors import Fault, GpuyardError, InvalidInputError, quoted
from gpuyard.studies.prompts import (
    PromptFileSet,
    PromptRecord,
    PromptRepository,
    TokenCounter,
    budget_warnings,
)
from gpuyard.studies.strategy_checks import model_warnings, study_faults
from gpuyard.studies.study import Study, plain_name
from gpuyard.studies.truth import load_truth

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StudyValidation:
    """The faults and warnings found. A study with faults is not run."""

    faults: tuple[Fault, ...]
    warnings: tuple[str, ...]
    prompts: int = 0


def validate_study(study: Study) -> StudyValidation:
    """Check a study's prompts, truth, model and strategies."""
    faults: list[Fault] = list(_folder_faults(study))
    warnings: list[str] = []
    records = (
        _collect(faults, lambda: PromptRepository(PromptFileSet.of(study)).load_all())
        or ()
    )
    truth = study.prompts.truth
    if truth and records:
        right = _collect(faults, lambda: load_truth(truth, records))
        if right is not None and len(right) < len(records):
            missing = len(records) - len(right)
            warnings.append(
                f"{missing} of {len(records)} prompts have no right answer in"
                f" {truth.name}"
            )
    faults += study_faults(study)
    if (study.model.path / "config.json").is_file():
        warnings += (
            _collect(faults, lambda: model_warnings(study.model.path, study)) or []
        )
        warnings += _collect(faults, lambda: _off_budget(study, records)) or []
    warnings += _about_baseline(study)
    return StudyValidation(tuple(dict.fromkeys(faults)), tuple(warnings), len(records))


def validate_by_trying(study: Study, provider: str, wait_s: float) -> StudyValidation:
    """Check a study, then ask its endpoint, and look at a node by a job.

    The job is sent only if nothing is wrong; it may take `wait_s` seconds.
    """
    from gpuyard.client.sync import Client
    from gpuyard.studies.baseline_check import baseline_faults
    from gpuyard.studies.node_probe import probe_node

    found = validate_on_cluster(study, provider)
    faults = [*found.faults]
    if study.baseline:
        faults += baseline_faults(study.baseline)
    if faults:
        return replace(found, faults=tuple(faults))
    with Client() as client:
        probed = probe_node(study, client, provider, wait_s)
    return replace(
        found, faults=probed.faults, warnings=(*found.warnings, *probed.warnings)
    )


def validate_on_cluster(study: Study, provider: str) -> StudyValidation:
    """Check a study, and compare it with what the cluster of an instance offers."""
    from gpuyard.client.sync import Client
    from gpuyard.studies.cluster_checks import check_cluster

    found = validate_study(study)
    try:
        with Client() as client:
            cluster = check_cluster(study, client, provider)
    except GpuyardError as error:
        warning = f"the cluster was not checked: {error}"
        return replace(found, warnings=(*found.warnings, warning))
    return replace(
        found,
        faults=(*found.faults, *cluster.faults),
        warnings=(*found.warnings, *cluster.warnings),
    )


def _folder_faults(study: Study) -> Iterator[Fault]:
    """Refuse folder names that the lines of a Slurm script cannot express."""
    name = str(study.directory)
    if not name.isprintable() or "\\" in name:
        yield Fault(
            "study",
            f"its folder {quoted(name)} has a backslash or a control character in its"
            " name",
            "rename it",
        )


def _about_baseline(study: Study) -> list[str]:
    """Warn when the baseline's model is not the study's model (X-16)."""
    if study.baseline is None:
        return [
            "there is no [baseline]: answers are compared with right ones where there"
            " are some, and with one another"
        ]
    asked = study.baseline.answers_as or study.baseline.model
    if plain_name(asked) == plain_name(study.model.name):
        return []
    return [
        f"the baseline asks {asked} and the cluster runs {study.model.name}: scores"
        " then compare models"
    ]


def _off_budget(study: Study, records: tuple[PromptRecord, ...]) -> list[str]:
    count_tokens = TokenCounter.of(study)
    return list(budget_warnings(records, count_tokens)) if count_tokens else []


def _collect(faults: list[Fault], look: Callable[[], T]) -> T | None:
    """Return what `look` returns; add its faults to `faults` if it fails."""
    try:
        return look()
    except InvalidInputError as error:
        faults += error.faults
        return None
