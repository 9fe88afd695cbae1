"""What people call datasets and their versions."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.workspaces import DEFAULT_PROJECT

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REFERENCE = re.compile(
    r"(?:([^/]*[^/:])/)?([^/@:]+)(?:@([^/@:]*))?(?::(/.*))?", re.DOTALL
)
# What containers have there already, or get from gpuyard.
_TAKEN = ("/workspace", "/gpuyard", "/proc", "/sys", "/dev", "/tmp", "/etc")


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
    """`[PROJECT/]NAME[@VERSION][:PATH]`, as people write it. Without a `project`, it is
    that of the job, or none; without a `version`, the newest. `path` is where a
    container has it.
    """

    project: str | None
    name: str
    version: int | None
    path: str | None = None

    @classmethod
    def parse(cls, text: str) -> "DatasetReference":
        """Read one; ValueError."""
        found = _REFERENCE.fullmatch(text)
        if found is None or (found[1] and not found[1].strip(".")):
            raise ValueError(
                f"{quoted(text)} names no dataset; write NAME, NAME@VERSION or"
                " PROJECT/NAME@VERSION; behind it, :/PATH for a container"
            )
        project, name, version, path = found.groups()
        if version is not None and not (version.isdecimal() and len(version) < 10):
            raise ValueError(
                f"{quoted(text)} names no version; write a number behind the @, such as"
                f" {dataset_name(name)}@2"
            )
        number = None if version is None else int(version)
        return cls(project, dataset_name(name), number, path and _path(path))

    def __str__(self) -> str:
        project = f"{self.project}/" if self.project else ""
        version = f"@{self.version}" if self.version is not None else ""
        path = f":{self.path}" if self.path else ""
        return f"{project}{self.name}{version}{path}"

    @property
    def place(self) -> str:
        """Where a container has it."""
        return self.path or f"/datasets/{self.name}"

    @property
    def variable(self) -> str:
        """The variable in which a job finds its folder."""
        return f"GPUYARD_DATASET_{re.sub('[^A-Z0-9]', '_', self.name.upper())}"


def _path(value: str) -> str:
    """A path in a container, without a slash at its end; ValueError."""
    steps = PurePosixPath(value).parts[1:]
    path = "/" + "/".join(steps)
    is_taken = any(path == one or path.startswith(f"{one}/") for one in _TAKEN)
    if not steps or ".." in steps or is_taken or not path.isprintable():
        raise ValueError(
            f"{quoted(value)} is no place for a dataset in a container; write a path"
            " such as /data, without '..'"
        )
    return path


def check_datasets(
    datasets: Sequence[str], *, is_command: bool, has_image: bool
) -> None:
    """ValueError, which names the field, for datasets that a job cannot have."""
    if datasets and not is_command:
        raise ValueError(
            "@datasets@are given, and only a command can have them; remove them"
        )
    references = [DatasetReference.parse(text) for text in datasets]
    for reference in references:
        if reference.path and not has_image:
            raise ValueError(
                f"@datasets@name the path {reference.path}, and the job names no image:"
                f" it finds the folder in ${reference.variable}; remove the path"
            )
    places = [reference.place for reference in references]
    if has_image and len(set(places)) < len(places):
        raise ValueError("@datasets@name one path twice; give each its own")
    variables = [reference.variable for reference in references]
    for variable in variables:
        if variables.count(variable) > 1:
            raise ValueError(
                f"@datasets@name two that the job would find by {variable}; give one of"
                " them"
            )


def shown_project(project: str | None) -> str:
    """The name of a project in addresses and listings."""
    return project or DEFAULT_PROJECT
