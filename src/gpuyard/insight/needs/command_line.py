"""What a program gets from its command line, and from the defaults that it declares:
argparse, click, typer, absl, dataclasses, Fire, Hydra.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuyard.insight.needs.config_files import composed, set_path
from gpuyard.insight.needs.expressions import Expressions
from gpuyard.insight.needs.values import (
    UNKNOWN,
    External,
    Function,
    Thing,
    UserClass,
    Value,
)

_LONGEST_VALUE = 10_000
_DATACLASSES = frozenset({"dataclass", "define", "s", "attrs", "chz"})
_FIELD_BASES = frozenset(
    {"BaseModel", "BaseSettings", "NamedTuple", "TypedDict", "Tap", "Struct"}
    | {"TypedArgs", "Coqpit", "ConfigBase", "Config"}
)


class CommandLine:
    """The words after the program: options with their values, and the others."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.options: dict[str, list[str]] = {}
        self.others: list[str] = []
        self.assignments: dict[str, str] = {}
        name: str | None = None
        for word in words:
            if _is_option(word):
                (name, equals, value) = word.lstrip("-").partition("=")
                name = name.replace("-", "_")
                self.options[name] = [value] if equals else []
            elif name is not None:
                self.options[name].append(word)
            elif "=" in word:
                (key, _, value) = word.partition("=")
                self.assignments[key.lstrip("+~")] = value
            else:
                self.others.append(word)

    def given(self, names: Iterable[str]) -> list[str] | None:
        """The values behind an option; None if it is not there."""
        for name in names:
            found = self.options.get(name.lstrip("-").replace("-", "_"))
            if found is not None:
                return found
        return None


def _is_option(word: str) -> bool:
    is_negative = word[1:2].isdigit() or word[1:2] == "."
    return word.startswith("-") and len(word) > 1 and not is_negative


def literal(text: str) -> Value:
    """A word as the number, truth or text that it looks like."""
    if len(text) > _LONGEST_VALUE:
        return UNKNOWN
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def converted(kind: Value, text: str) -> Value:
    """A word as the type that an option declares."""
    name = kind.name.rpartition(".")[2] if isinstance(kind, External) else ""
    if name == "str":
        return text
    if name in ("int", "float"):
        try:
            return int(text) if name == "int" else float(text)
        except ValueError:
            return UNKNOWN
    return literal(text)


def add_option(parser: Thing, declared: Thing) -> None:
    """Note `parser.add_argument(…)`."""
    options = parser.facts.setdefault("options", [])
    options.append(declared)


def parsed_arguments(parser: Thing, line: CommandLine) -> Thing:
    """The namespace that the parser makes of the command line."""
    values: dict[str, Value] = {}
    others = [*_surplus(parser, line), *line.others]
    for declared in parser.facts.get("options", []):
        names = [each for each in declared.arguments if isinstance(each, str)]
        if not names:
            continue
        destination = declared.keywords.get("dest")
        if not isinstance(destination, str):
            destination = _destination(names)
        values[destination] = _value_of(declared, names, line, others)
    for declared in parser.facts.get("defaults", []):
        values.update(declared.keywords)
    return Thing("argparse.Namespace", parser.place, attributes=values)


def _surplus(parser: Thing, line: CommandLine) -> list[str]:
    """The words behind options that take fewer: they are positional."""
    found: list[str] = []
    for declared in parser.facts.get("options", []):
        names = [each for each in declared.arguments if isinstance(each, str)]
        if not names or not names[0].startswith("-"):
            continue
        keywords = declared.keywords
        if keywords.get("nargs") is None:
            action = str(keywords.get("action"))
            takes = 0 if action.startswith("store_") or action == "count" else 1
            found += (line.given(names) or [])[takes:]
    return found


def _destination(names: Sequence[str]) -> str:
    long = [name for name in names if name.startswith("--")]
    return (long or list(names))[0].lstrip("-").replace("-", "_")


def _value_of(
    declared: Thing, names: Sequence[str], line: CommandLine, others: list[str]
) -> Value:
    keywords = declared.keywords
    action = keywords.get("action")
    default = keywords.get("default", None)
    kind = keywords.get("type")
    many = keywords.get("nargs") in ("+", "*") or isinstance(keywords.get("nargs"), int)
    if not names[0].startswith("-"):
        found = [others.pop(0)] if others else None
    else:
        found = line.given(names)
    if action in ("store_true", "store_false"):
        return (found is not None) == (action == "store_true")
    is_boolean = isinstance(action, External) and "Boolean" in action.name
    if is_boolean and found is not None:
        return True
    if is_boolean and line.given([f"no-{names[0].lstrip('-')}"]) is not None:
        return False
    if action == "store_const" and found is not None:
        return keywords.get("const")
    if found is None or not found:
        if isinstance(default, str) and isinstance(kind, External):
            return converted(kind, default)
        return default
    values = [converted(kind, word) for word in found]
    return values if many else values[0]


def click_arguments(function: Function, line: CommandLine) -> dict[str, Value] | None:
    """The keywords that click gives a command; None if it is none of click's."""
    declared = [
        value
        for value in function.decorators.values()
        if isinstance(value, Thing) and value.last_name in ("option", "argument")
    ]
    names = [name.rpartition(".")[2] for name in function.decorators]
    if not declared and "command" not in names:
        return None
    parser = Thing("click", declared[0].place) if declared else None
    if parser is None:
        return _typer_arguments(function, line)
    for each in declared:
        _as_argparse(each)
        add_option(parser, each)
    return parsed_arguments(parser, line).attributes


def _as_argparse(option: Thing) -> None:
    if option.keywords.get("is_flag") is True and "default" not in option.keywords:
        option.keywords["action"] = "store_true"
    names = [str(name) for name in option.arguments]
    option.arguments = [part for name in names for part in name.split("/")[:1]]


def _typer_arguments(function: Function, line: CommandLine) -> dict[str, Value]:
    """The parameters of a function: their defaults, and what the line says."""
    found: dict[str, Value] = {}
    others = list(line.others)
    arguments = function.node.args
    for each in (*arguments.args, *arguments.kwonlyargs):
        default = function.defaults.get(each.arg, UNKNOWN)
        if isinstance(default, Thing) and default.last_name in ("Option", "Argument"):
            default = default.argument(0, "default")
        words = line.given([each.arg])
        if words is not None:
            default = literal(words[0]) if words else True
        elif default is UNKNOWN and others:
            default = literal(others.pop(0))
        found[each.arg] = default
    return found


def fire_arguments(function: Function, line: CommandLine) -> dict[str, Value]:
    """The keywords that Fire gives a function."""
    return {
        name: v
        for name, v in _typer_arguments(function, line).items()
        if v is not UNKNOWN
    }


def hydra_config(host: Expressions, function: Function, line: CommandLine) -> Value:
    """The configuration that `@hydra.main` passes; `UNKNOWN` without such a file."""
    decorators = [
        value
        for name, value in function.decorators.items()
        if isinstance(value, Thing) and name.endswith("hydra.main")
    ]
    if not decorators:
        return UNKNOWN
    decorator = decorators[0]
    folder = decorator.argument(0, "config_path", default=None)
    name = decorator.argument(1, "config_name", default="config")
    if not isinstance(name, str):
        return UNKNOWN
    parts = [host.sources.entry.rpartition("/")[0]]
    parts += folder.split("/") if isinstance(folder, str) else []
    path = normal_path(parts)
    texts = {p: host.sources.text(p) or "" for p in host.sources.paths()}
    words = [f"{key}={value}" for key, value in line.assignments.items()]
    chosen = line.given(["config_name"]) or [name]
    return composed(texts, path, chosen[0].removesuffix(".yaml"), words)


def normal_path(parts: Iterable[str]) -> str:
    """The path that parts make, without `.` and `..`."""
    found: list[str] = []
    for part in "/".join(parts).split("/"):
        if part == "..":
            found = found[:-1]
        elif part not in ("", "."):
            found.append(part)
    return "/".join(found)


def is_dataclass(user_class: UserClass) -> bool:
    """Whether a class is made from its annotated fields."""
    if any(
        name in _DATACLASSES
        for each in user_class.ancestry()
        for name in each.decorators
    ):
        return True
    bases = [name.rpartition(".")[2] for name in user_class.library_bases()]
    return any(name in _FIELD_BASES or name.endswith("Arguments") for name in bases)


def fields_of(user_class: UserClass) -> dict[str, Value]:
    """The annotated fields of a class and its bases, with their defaults."""
    found: dict[str, Value] = {}
    for each in reversed(user_class.ancestry()):
        for statement in each.node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found[name] = each.scope.names.get(name, UNKNOWN)
                case _:
                    pass
    return found


def default_of(host: Expressions, value: Value) -> Value:
    """The default of a field, of `field(default=…)` or `field(default_factory=…)`."""
    if not isinstance(value, Thing) or value.last_name not in ("field", "Field", "ib"):
        return value
    factory = value.keywords.get("default_factory")
    if factory is not None:
        node = ast.Constant(None)
        scope = host.imported(host.sources.entry)
        return host.call_value(factory, [], {}, node, scope)
    return value.argument(0, "default")


def from_command_line(
    host: Expressions, kind: Value, line: CommandLine, node: ast.AST
) -> Value:
    """An object of a dataclass, or of a library's class, as parsers such as tyro,
    simple_parsing and HfArgumentParser make it.
    """
    scope = host.imported(host.sources.entry)
    if isinstance(kind, UserClass):
        names: Iterable[str] = fields_of(kind)
        if any(base.endswith("Arguments") for base in kind.library_bases()):
            names = line.options
        keywords = _options_of(names, line)
    elif isinstance(kind, External):
        keywords = _options_of(line.options, line)
    else:
        return UNKNOWN
    if isinstance(kind, External) or not keywords:
        return host.call_value(kind, [], keywords, node, scope)
    return host.call_value(kind, [], keywords, node, scope)


def _options_of(names: Iterable[str], line: CommandLine) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name in names:
        words = line.given([name])
        if words is None:
            continue
        if not words:
            found[name] = True
        else:
            values = [literal(word) for word in words]
            found[name] = values if len(values) > 1 else values[0]
    return found


def given_options(line: CommandLine) -> dict[str, Value]:
    """All options of the line with their values."""
    return _options_of(line.options, line)


def override(names: dict[str, Value], line: CommandLine) -> None:
    """Replace the names of a module by what the line says, as programs do whose
    configuration are their global variables.
    """
    for name, words in line.options.items():
        if name in names and words:
            names[name] = literal(words[0])


def nested_override(config: dict[Any, Value], assignments: Mapping[str, str]) -> None:
    """Apply `a.b=c` to a configuration."""
    for path, text in assignments.items():
        set_path(config, path, literal(text))
