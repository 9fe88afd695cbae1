"""The model that an option or a configuration file names, for programs that make it in
a way that cannot be followed.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Iterator, Mapping

from gpuyard.insight.needs.command_line import CommandLine, given_options
from gpuyard.insight.needs.config_files import parsed_config, resolved
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
    "model_args",
    "pretrained",
    "checkpoint",
    "ckpt_dir",
)
_PAIR = re.compile(r"(?:^|,)(?:pretrained|model)=([^,]+)")
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
            config = resolved(config)
            plain = {k: v for k, v in config.items() if not isinstance(v, dict)}
            made = Thing("gpuyard.FileConfig", Place(path, 1))
            made.keywords = {**config, **dict(_flat(config, "", 0)), **plain}
            return made
    return None


def options_given(host: Expressions) -> Thing | None:
    """The options of the command line by their names and by the last parts of these;
    None without any.
    """
    given = given_options(CommandLine(host.arguments))
    if not given:
        return None
    made = Thing("gpuyard.OptionNamespace", Place(host.sources.entry, 0))
    last = {name.rpartition(".")[2]: value for name, value in given.items()}
    made.keywords = {**last, **given}
    return made


def read_deepspeed(host: Expressions) -> None:
    """Put the tables of DeepSpeed in the place of the files that are named for them."""
    for call in host.calls:
        path = call.thing.keywords.get("deepspeed")
        text = host.sources.text(path) if isinstance(path, str) else None
        if text is not None:
            call.thing.keywords["deepspeed"] = parsed_config(text)


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


def _in_pairs(value: str) -> str:
    """The name in `pretrained=NAME,dtype=auto`; any other value as it is."""
    found = _PAIR.search(value)
    return found[1] if found else value


def model_named(host: Expressions, settings: Mapping[str, Value]) -> Thing | None:
    """A known model that one of the options names; None if none does."""
    options = options_given(host)
    given = {**settings, **(options.keywords if options else {})}
    for name in _NAMES:
        value = given.get(name)
        if not isinstance(value, str) or len(value) > _LONGEST_NAME:
            continue
        value = _in_pairs(value)
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
