"""Configuration files of programs: YAML, JSON and TOML, and Hydra's way of composing
them. A file that would take long to read counts as one that says nothing.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
import tomllib
from collections.abc import Mapping
from typing import Any

import yaml

from gpuyard.insight.needs.values import UNKNOWN, Value

# Characters; a configuration is short, and a long file is data.
_LONGEST = 50_000
_MOST_MERGES = 10
# Of each list of aliases in a merge, all pairs are written out.
_MOST_ALIASES_MERGED = 12
# Files of one configuration of Hydra: each can name many, which name many again.
_MOST_COMPOSED = 200
# Nodes after all aliases are followed: one short file can stand for billions.
_MOST_NODES = 20_000
_DEEPEST = 30
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def parsed_config(text: str) -> Value:
    """What a configuration says; `UNKNOWN` if it cannot be read."""
    merges = text.count("<<")
    is_large = merges > 0 and text.count("*") > _MOST_ALIASES_MERGED
    if len(text) > _LONGEST or merges > _MOST_MERGES or is_large:
        return UNKNOWN
    try:
        found: Any = yaml.load(text, Loader=_LOADER)  # noqa: S506 - it is a safe one
    except (yaml.YAMLError, ValueError, RecursionError):
        found = _toml(text)
    if isinstance(found, str):
        found = _toml(text)
    budget = [_MOST_NODES]
    return _plain(found, budget, 0)


def _toml(text: str) -> Value:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return UNKNOWN


def _plain(value: Any, budget: list[int], depth: int) -> Value:
    """A copy with a bounded number of nodes; what is beyond is `UNKNOWN`."""
    budget[0] -= 1
    if budget[0] < 0 or depth > _DEEPEST:
        return UNKNOWN
    if isinstance(value, dict):
        return {
            key: _plain(each, budget, depth + 1)
            for key, each in value.items()
            if budget[0] > 0
        }
    if isinstance(value, list):
        return [_plain(each, budget, depth + 1) for each in value if budget[0] > 0]
    if isinstance(value, str):
        return _as_number(value)
    return value


def _as_number(text: str) -> Value:
    """`5e-5` is a text in YAML 1.1, and everybody means the number."""
    if re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", text):
        return float(text)
    return text


def composed(
    texts: Mapping[str, str], folder: str, name: str, overrides: list[str]
) -> Value:
    """Hydra's configuration `name` of a folder, with its defaults and with the
    overrides `key=value`.
    """
    choices = dict(_pair(word) for word in overrides if "=" in word)
    found = _compose(texts, folder, name, choices, [_MOST_COMPOSED], 0)
    if not isinstance(found, dict):
        return UNKNOWN
    for key, value in choices.items():
        if not _is_group(texts, folder, key):
            set_path(found, key.lstrip("+~"), value)
    return _resolved(found, found, [_MOST_NODES], 0)


def resolved(config: dict[Value, Value]) -> dict[Value, Value]:
    """A configuration with its references `${a.b}` replaced."""
    found = _resolved(config, config, [_MOST_NODES], 0)
    return found if isinstance(found, dict) else config


def _pair(word: str) -> tuple[str, Value]:
    (key, _, text) = word.partition("=")
    try:
        value: Any = yaml.safe_load(text) if len(text) < 1_000 else text
    except (yaml.YAMLError, ValueError, RecursionError):
        value = text
    return key, _plain(value, [100], 0)


def _is_group(texts: Mapping[str, str], folder: str, key: str) -> bool:
    prefix = f"{folder}/{key}/" if folder else f"{key}/"
    return any(path.startswith(prefix) for path in texts)


def _compose(
    texts: Mapping[str, str],
    folder: str,
    name: str,
    choices: Mapping[str, Value],
    budget: list[int],
    depth: int,
) -> Value:
    budget[0] -= 1
    if budget[0] < 0:
        return UNKNOWN
    base = f"{folder}/{name}" if folder else name
    text = next((texts[p] for p in (f"{base}.yaml", f"{base}.yml") if p in texts), None)
    own = parsed_config(text) if text is not None else {}
    if not isinstance(own, dict) or depth > 5:
        return own
    defaults: Any = own.pop("defaults", [])
    found: dict[Value, Value] = {}
    group_folder = name.rpartition("/")[0]
    for entry in defaults if isinstance(defaults, list) else []:
        if isinstance(entry, str) and entry != "_self_":
            beside = f"{group_folder}/{entry}" if group_folder else entry
            inner = _compose(texts, folder, beside, choices, budget, depth + 1)
            found |= inner if isinstance(inner, dict) else {}
        for group, choice in _default(entry):
            picked = choices.get(group, choice)
            inner = _compose(
                texts, folder, f"{group}/{picked}", choices, budget, depth + 1
            )
            if group and isinstance(inner, dict):
                found[group.rpartition("/")[2]] = inner
    for key, value in own.items():
        both = isinstance(found.get(key), dict) and isinstance(value, dict)
        found[key] = {**found[key], **value} if both else value
    return found


def _default(entry: Any) -> list[tuple[str, str]]:
    if not isinstance(entry, dict):
        return []
    return [
        (str(group).removeprefix("override ").removeprefix("/"), str(choice))
        for group, choice in entry.items()
        if choice
    ]


def set_path(config: dict[Value, Value], path: str, value: Value) -> None:
    """Set `a.b.c` in nested dicts."""
    parts = path.split(".")
    for part in parts[:-1]:
        inner = config.get(part)
        if not isinstance(inner, dict):
            inner = config[part] = {}
        config = inner
    config[parts[-1]] = value


def _resolved(
    value: Value, root: dict[Value, Value], budget: list[int], depth: int
) -> Value:
    """A value with its references `${a.b}` replaced; what is beyond `budget` nodes is
    `UNKNOWN`.
    """
    budget[0] -= 1
    if depth > _DEEPEST or budget[0] < 0:
        return UNKNOWN
    if isinstance(value, dict):
        return {
            key: _resolved(each, root, budget, depth + 1) for key, each in value.items()
        }
    if isinstance(value, list):
        return [_resolved(each, root, budget, depth + 1) for each in value]
    if isinstance(value, str) and (match := _REFERENCE.fullmatch(value)):
        target: Value = root
        for part in match[1].split("."):
            target = target.get(part, UNKNOWN) if isinstance(target, dict) else UNKNOWN
        return _resolved(target, root, budget, depth + 10)
    return value
