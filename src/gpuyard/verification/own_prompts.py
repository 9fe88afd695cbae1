"""Prompts of people's own: files of them become series beside those that a trusted executor makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, call
from gpuyard.verification.files import keep_files
from gpuyard.verification.prompts import read_prompt_file

# What generators number from 1; no generator made these.
BY_HAND = 0


@dataclass(frozen=True, slots=True)
class Added:
    """How many files became series, and how many were there already or found no room."""

    series: int
    left_out: int


async def add_files(context: Context, cls: Class, paths: Sequence[Path]) -> Added:
    """A series of each file, which holds as many prompts as the class has in one, a line each.

    InvalidInputError, and nothing is added, when one of the files cannot be used; OSError when the storage cannot.
    """
    series = [await call(read_prompt_file, path, TRAITS[cls].prompts, "FILE") for path in paths]
    for number, prompts in enumerate(series):
        if (first := series.index(prompts)) < number:
            fault = f"{paths[number]} holds what {paths[first]} holds"
            raise InvalidInputError.of("FILE", fault, "name each file once")
    stored = await keep_files(context, series)
    if fault := next((one for one in stored if isinstance(one, OSError)), None):
        raise fault
    blobs = [one for one in stored if isinstance(one, str)]
    added = await call(context.records.add_series, cls, blobs, BY_HAND, context.policy.max_series)
    return Added(added, len(paths) - added)
