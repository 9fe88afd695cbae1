"""The model that an option or a configuration file names, for programs that make it in
a way that cannot be followed.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Iterator, Mapping

from gpuyard.insight.needs.config_files import parsed_config
from gpuyard.insight.needs.expressions import Expressions
from gpuyard.insight.needs.models import set_named
from gpuyard.insight.needs.values import Place, Thing, Value

_NAMES = (
    "model_name_or_path",
    "pretrained_model_name_or_path",
    "base_model",
    "base_model_name_or_path",
    "model_name",
    "model_id",
    "model",
    "arch",
    "architecture",
    "backbone",
    "weights",
    "model._component_",
)
_ADAPTERS = re.compile(r"(?:^|[._])(q?)lora_")
_MOST_DEPTH = 4
_LONGEST_NAME = 200
_LONGEST_CODE = 80
_CONFIG_FILES = (".yaml", ".yml", ".json", ".toml")


def config_given(host: Expressions) -> Thing | None:
    """The configuration file that the command line names, as one flat configuration;
    None without such a file.
    """
    for path in _paths_given(host):
        config = parsed_config(host.sources.text(path) or "")
        if isinstance(config, dict):
            made = Thing("gpuyard.FileConfig", Place(path, 1))
            made.keywords = {**config, **dict(_flat(config, "", 0))}
            return made
    return None


def _paths_given(host: Expressions) -> list[str]:
    words = [word.rpartition("=")[2] for word in host.arguments]
    files = [word for word in words if word.endswith(_CONFIG_FILES)]
    return [path for path in files if host.sources.text(path) is not None]


def _place_of(host: Expressions, name: str, value: str) -> Place:
    """The line that gives an option its value; line 0 of the program if none does."""
    word = name.rpartition(".")[2]
    for path in (*_paths_given(host), host.sources.entry):
        lines = (host.sources.text(path) or "").splitlines()
        for at, line in enumerate(lines, 1):
            if word in line and value in line:
                return Place(path, at, line.strip()[:_LONGEST_CODE])
    return Place(host.sources.entry, 0)


def _flat(
    config: Mapping[Value, Value], before: str, depth: int
) -> Iterator[tuple[str, Value]]:
    for key, value in config.items():
        if isinstance(value, dict) and depth < _MOST_DEPTH:
            yield from _flat(value, f"{before}{key}.", depth + 1)
        elif isinstance(key, str):
            yield f"{before}{key}", value
            yield key, value


def model_named(host: Expressions, settings: Mapping[str, Value]) -> Thing | None:
    """A known model that one of the options names; None if none does."""
    for name in _NAMES:
        value = settings.get(name)
        if not isinstance(value, str) or len(value) > _LONGEST_NAME:
            continue
        made = Thing(f"gpuyard.{name}", _place_of(host, name, value))
        adapter = _ADAPTERS.search(value)
        plain = _ADAPTERS.sub("", value.rpartition(".")[2]) if adapter else value
        if name == "model._component_":
            plain = plain.rpartition(".")[2].replace("_", "-")
        if not set_named(made, plain):
            continue
        made.facts.update({"by_name": True, "option": name})
        if adapter:
            made.facts["adapter"] = f"{adapter[1]}lora"
        return made
    return None
