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


def config_given(host: Expressions) -> Thing | None:
    """The configuration file that the command line names, as one flat configuration;
    None without such a file.
    """
    for word in host.arguments:
        path = word.rpartition("=")[2]
        if not path.endswith((".yaml", ".yml", ".json", ".toml")):
            continue
        text = host.sources.text(path)
        config = parsed_config(text) if text is not None else None
        if isinstance(config, dict):
            made = Thing("gpuyard.FileConfig", Place(path, 1))
            made.keywords = {**config, **dict(_flat(config, "", 0))}
            return made
    return None


def _flat(
    config: Mapping[Value, Value], before: str, depth: int
) -> Iterator[tuple[str, Value]]:
    for key, value in config.items():
        if isinstance(value, dict) and depth < _MOST_DEPTH:
            yield from _flat(value, f"{before}{key}.", depth + 1)
        elif isinstance(key, str):
            yield f"{before}{key}", value
            yield key, value


def model_named(settings: Mapping[str, Value], entry: str) -> Thing | None:
    """A known model that one of the options names; None if none does."""
    for name in _NAMES:
        value = settings.get(name)
        if not isinstance(value, str) or len(value) > 200:
            continue
        made = Thing(f"gpuyard.{name}", Place(entry, 1))
        adapter = _ADAPTERS.search(value)
        plain = _ADAPTERS.sub("", value.rpartition(".")[2]) if adapter else value
        if name == "model._component_":
            plain = plain.rpartition(".")[2].replace("_", "-")
        if not set_named(made, plain):
            continue
        made.facts["by_name"] = True
        if adapter:
            made.facts["adapter"] = f"{adapter[1]}lora"
        return made
    return None
