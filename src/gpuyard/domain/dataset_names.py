"""What people call datasets and their versions."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.workspaces import DEFAULT_PROJECT

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REFERENCE = re.compile(r"(?:([^/]+)/)?([^/@]+)(?:@([^/@]*))?")


def dataset_name(value: str) -> str:
    """The name of a dataset; ValueError."""
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{quoted(value)} is no name of a dataset; use at most 100 letters, digits,"
            " '.', '_' and '-', the first of them a letter or a digit"
        )
    return value


def check_dataset_name(value: str) -> None:
    """InvalidInputError for what is no name of a dataset."""
    try:
        dataset_name(value)
    except ValueError as error:
        fault, _, remedy = str(error).partition("; ")
        raise InvalidInputError.of("name", fault, remedy) from None


class DatasetReference(NamedTuple):
    """`[PROJECT/]NAME[@VERSION]`, as people write it. Without a `project`, it is that
    of the job, or none; without a `version`, the newest.
    """

    project: str | None
    name: str
    version: int | None

    @classmethod
    def parse(cls, text: str) -> "DatasetReference":
        """Read one; ValueError."""
        found = _REFERENCE.fullmatch(text)
        if found is None or (found[1] and not found[1].strip(".")):
            raise ValueError(
                f"{quoted(text)} names no dataset; write NAME, NAME@VERSION or"
                " PROJECT/NAME@VERSION"
            )
        project, name, version = found.groups()
        if version is not None and not (version.isdecimal() and len(version) < 10):
            raise ValueError(
                f"{quoted(text)} names no version; write a number behind the @, such as"
                f" {dataset_name(name)}@2"
            )
        return cls(
            project, dataset_name(name), None if version is None else int(version)
        )

    def __str__(self) -> str:
        project = f"{self.project}/" if self.project else ""
        version = f"@{self.version}" if self.version is not None else ""
        return f"{project}{self.name}{version}"

    @property
    def variable(self) -> str:
        """The variable in which a job finds its folder."""
        return f"GPUYARD_DATASET_{re.sub('[^A-Z0-9]', '_', self.name.upper())}"


def check_datasets(datasets: Sequence[str], *, is_plain: bool) -> None:
    """ValueError, which names the field, for datasets that a job cannot have.
    `is_plain`: it is a command without an image.
    """
    if datasets and not is_plain:
        raise ValueError(
            "@datasets@are given, and only a command without an image can have them;"
            " remove them, or the image"
        )
    variables = [DatasetReference.parse(text).variable for text in datasets]
    for variable in variables:
        if variables.count(variable) > 1:
            raise ValueError(
                f"@datasets@name two that the job would find by {variable}; give one of"
                " them"
            )


def shown_project(project: str | None) -> str:
    """The name of a project in addresses and listings."""
    return project or DEFAULT_PROJECT
