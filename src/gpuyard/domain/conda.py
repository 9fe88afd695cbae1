"""What of a conda `environment.yml` can be had without conda: the version of Python and
the packages of pip.
"""

import re
from typing import Any, cast

from gpuyard.domain.errors import InvalidInputError

_FIELD = "packages"
_REMEDY = (
    "name it under `pip:`, or use an environment of conda by its own Python:"
    " `gpuyard run /path/to/env/bin/python train.py`"
)
_IGNORED = frozenset({"name", "channels", "prefix", "dependencies"})
# What conda needs and an environment of uv does not, or has.
_NOT_NEEDED = frozenset({"pip", "setuptools", "wheel"})
_SPEC = re.compile(r"(?:\S+::)?([\w.-]+)\s*(.*)", re.DOTALL)


def pip_part(path: str, text: str) -> tuple[list[str], str]:
    """The requirements under `pip:`, and which versions of Python suit, empty for any.
    InvalidInputError names the line of what only conda can give.
    """
    import yaml  # imported late: few jobs have such a file

    try:
        root = cast("Any", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    except (yaml.YAMLError, RecursionError) as error:
        fault = f"{path} is not valid YAML: {error}"
        raise InvalidInputError.of(_FIELD, fault, "correct it") from None
    if not isinstance(root, yaml.MappingNode):
        raise _refusal(path, 1, "is no table with `dependencies`")
    requirements: list[str] = []
    python = ""
    for key, value in _pairs(root):
        name = _text(path, key)
        if name not in _IGNORED:
            raise _refusal(path, _line(key), f"`{name}:` needs conda")
        if name != "dependencies":
            continue
        if not isinstance(value, yaml.SequenceNode):
            raise _refusal(path, _line(value), "is no list of dependencies")
        for entry in value.value:
            if isinstance(entry, yaml.MappingNode):
                requirements += _under_pip(path, entry)
            else:
                python = _python(path, entry) or python
    return requirements, python


def _under_pip(path: str, entry: Any) -> list[str]:
    found: list[str] = []
    for key, value in _pairs(entry):
        name = _text(path, key)
        listed: Any = value.value
        if name != "pip" or not isinstance(listed, list):
            raise _refusal(path, _line(key), f"`{name}:` needs conda")
        found += [_text(path, each) for each in cast("list[Any]", listed)]
    return found


def _text(path: str, node: Any) -> str:
    """A text of the file. What is no text is never printed: with aliases, a few words
    can stand for billions. InvalidInputError.
    """
    if not isinstance(node.value, str):
        raise _refusal(path, _line(node), "has a list or a table in place of a text")
    return node.value


def _python(path: str, entry: Any) -> str:
    """The versions that a line such as `python=3.11` asks for; InvalidInputError for
    any other package.
    """
    written = _text(path, entry).strip()
    matched = _SPEC.fullmatch(written)
    name = matched[1] if matched else written
    if name in _NOT_NEEDED:
        return ""
    if name != "python" or matched is None:
        raise _refusal(path, _line(entry), f"`{written[:80]}` comes from conda alone")
    version = re.sub(r"\s", "", matched[2])
    # conda writes python=3.11 for what others call 3.11.*; a second = names a build.
    if re.match(r"=[\d.]", version):
        version = version[1:].partition("=")[0].removesuffix(".*")
    elif version.startswith("=="):
        version = version[2:]
    return version


def _pairs(node: Any) -> list[tuple[Any, Any]]:
    return list(node.value)


def _line(node: Any) -> int:
    return node.start_mark.line + 1


def _refusal(path: str, line: int, what: str) -> InvalidInputError:
    return InvalidInputError.of(_FIELD, f"{path}:{line} {what}", _REMEDY)
