"""The job of one run: the values of its parameters in the words of its program."""

import re
from collections.abc import Mapping
from typing import Any, cast

# `${lr}` is a variable of the shell.
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


def with_values(
    job: Mapping[str, Any], parameters: Mapping[str, str], known: Mapping[str, str]
) -> dict[str, Any]:
    """`job` with the value of a parameter wherever its name stands in braces: in the
    command, the variables, and the patterns of checkpoints and artifacts. `known`:
    other names.

    A parameter that stands nowhere is added to the command, as `--NAME VALUE`.
    """
    filler = _Filler({**known, **parameters})
    filled: dict[str, Any] = dict(job)
    filled["command"] = [filler.fill(word) for word in job["command"]]
    if "artifacts" in job:
        filled["artifacts"] = [filler.fill(pattern) for pattern in job["artifacts"]]
    for field in ("environment", "checkpoint"):
        if field in job:
            filled[field] = _filled_table(filler, job[field])
    left = [name for name in parameters if name not in filler.used]
    for name in left:
        filled["command"] += [f"--{name}", parameters[name]]
    return filled


def _filled_table(filler: "_Filler", table: Any) -> Any:
    """A table whose texts are filled in."""
    if not isinstance(table, Mapping):
        return table
    return {
        name: filler.fill(value) if isinstance(value, str) else value
        for name, value in cast("Mapping[str, Any]", table).items()
    }


class _Filler:
    """Fills in values; `used` are the names that it has met."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.used: set[str] = set()
        self._values = values

    def fill(self, text: str) -> str:
        """The text with the values in it; other braces stay."""
        return _PLACEHOLDER.sub(self._value, text)

    def _value(self, match: re.Match[str]) -> str:
        name = match[1]
        if name not in self._values:
            return match[0]
        self.used.add(name)
        return self._values[name]
