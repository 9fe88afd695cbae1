"""What starts a program and gives it its options: parsers, commands, configurations."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
from typing import Any

from gpuyard.insight.needs import command_line as options
from gpuyard.insight.needs.config_files import parsed_config
from gpuyard.insight.needs.expressions import Expressions
from gpuyard.insight.needs.python_calls import deep_copy
from gpuyard.insight.needs.values import (
    UNKNOWN,
    Bound,
    External,
    Function,
    Place,
    Scope,
    Thing,
    UserClass,
    Value,
    number,
    whole,
)

_MOST_BASES = 10


def _take_over(receiver: Thing, config: dict[Value, Value], depth: int) -> None:
    for key, value in config.items():
        if not isinstance(key, str) or depth > _MOST_BASES:
            continue
        inner = receiver.attributes.get(key)
        if isinstance(inner, Thing) and isinstance(value, dict):
            _take_over(inner, value, depth + 1)
        elif isinstance(inner, dict) and isinstance(value, dict):
            receiver.attributes[key] = {**inner, **value}
        else:
            receiver.attributes[key] = value


class Launches:
    """The part of the libraries that starts programs."""

    def __init__(self, host: Expressions) -> None:
        self._host = host
        self._line = options.CommandLine(host.arguments)
        # All flags of absl, and of TensorFlow before it.
        self._flags = Thing("absl.flags.FlagValues", Place(host.sources.entry, 0))

    def attribute(self, name: str) -> Value:
        """What a dotted name of a library means."""
        raise NotImplementedError

    def decorated(self, function: Function) -> None:
        """A function was defined; commands are remembered."""
        if any(
            name.endswith((".command", "click.command")) for name in function.decorators
        ):
            self._host.commands.append(function)

    def from_decorators(
        self, function: Function, arguments: list[Value], keywords: dict[str, Value]
    ) -> tuple[list[Value], dict[str, Value]]:
        """The arguments that a decorator adds to a call without any."""
        if arguments or keywords or not function.decorators:
            return arguments, keywords
        if any(name.endswith("hydra.main") for name in function.decorators):
            config = options.hydra_config(self._host, function, self._line)
            return [config], {}
        found = options.click_arguments(function, self._line)
        return ([], found) if found else (arguments, keywords)

    def _run_command(self, node: ast.AST, scope: Scope) -> Value:
        commands = self._host.commands
        named = [each for each in commands if each.name in self._line.others]
        for each in (named or commands)[:1]:
            return self._host.call_value(each, [], {}, node, scope)
        return UNKNOWN

    def _run_function(self, thing: Thing, scope: Scope) -> Value:
        """A library that runs a function of the program."""
        self._host.record(thing)
        function = thing.argument(0, "fn", "target", "function", "func")
        if not isinstance(function, Function | Bound):
            return thing
        given = thing.argument(-1, "args", default=())
        extra = list(given) if isinstance(given, tuple | list) else []
        if thing.name.startswith("ignite.distributed"):
            extra = [0, *thing.arguments[1:]]
        if thing.last_name in ("spawn", "start_processes"):
            extra = [0, *extra]
        node = thing.facts["node"]
        return self._host.call_value(function, extra, {}, node, scope)

    def _fire(self, thing: Thing, scope: Scope) -> Value:
        function = thing.argument(0)
        if isinstance(function, dict):
            chosen = [function[word] for word in self._line.others if word in function]
            function = next(iter(chosen or function.values()), None)
        if isinstance(function, Function):
            keywords = options.fire_arguments(function, self._line)
            noted = Thing("fire.Namespace", thing.place, keywords=dict(keywords))
            self._host.record(noted)
            return self._host.call_value(
                function, [], keywords, thing.facts["node"], scope
            )
        return UNKNOWN

    def _overrides(self, thing: Thing, scope: Scope) -> Value:
        found: dict[Any, Value] = {}
        options.nested_override(found, self._line.assignments)
        return found

    def _define_flag(self, thing: Thing, last: str) -> Value:
        name = thing.argument(0, "name")
        value = thing.argument(1, "default", default=None)
        words = self._line.given([str(name)])
        if words is not None:
            value = options.literal(words[0]) if words else True
        if last == "DEFINE_config_file" and isinstance(value, str):
            value = self._config_of(value.partition(":")[0], thing)
        thing.attributes["value"] = value
        if isinstance(name, str):
            self._flags.attributes[name] = value
        return thing

    def _config_of(self, path: str, thing: Thing) -> Value:
        """What `get_config` of a file of ml_collections gives."""
        sources = self._host.sources
        found = next((p for p in sources.paths() if p == path), None)
        make = self._host.imported(found).names.get("get_config") if found else None
        if not isinstance(make, Function):
            return UNKNOWN
        return self._host.call_value(make, [], {}, thing.facts["node"], make.scope)

    def _config_from_file(self, thing: Thing, node: ast.AST, scope: Scope) -> Value:
        """`Config.from_json_file(path)`: the configuration with what the file says."""
        path = thing.argument(0, "json_file", "path", "yaml_file")
        text = self._host.sources.text(path) if isinstance(path, str) else None
        config = parsed_config(text) if text is not None else UNKNOWN
        if not isinstance(config, dict):
            thing.facts["unknown_config"] = path
            return thing
        keywords = {key: value for key, value in config.items() if isinstance(key, str)}
        kind = External(thing.name.rpartition(".")[0])
        return self._host.call_value(kind, [], keywords, node, scope)

    def _method_merge_from_file(self, receiver: Thing, thing: Thing) -> Value:
        """A configuration of yacs takes over what a file says."""
        path = thing.argument(0, "cfg_filename")
        for config in self._with_bases(path, 0):
            _take_over(receiver, config, 0)
        return None

    def _with_bases(self, path: Value, depth: int) -> list[dict[Value, Value]]:
        """What a file says, after those on which it is based."""
        text = self._host.sources.text(path) if isinstance(path, str) else None
        config = parsed_config(text) if text is not None else UNKNOWN
        if not isinstance(config, dict) or depth > _MOST_BASES:
            return []
        base = config.pop("_BASE_", config.pop("BASE", None))
        if isinstance(base, list):
            base = base[0] if base else None
        before: list[dict[Value, Value]] = []
        if isinstance(base, str) and base:
            folder = str(path).rpartition("/")[0]
            before = self._with_bases(options.normal_path([folder, base]), depth + 1)
        return [*before, config]

    def _method_merge_from_list(self, receiver: Thing, thing: Thing) -> Value:
        """A configuration of yacs takes over `[KEY, value, KEY, value, …]`."""
        words = thing.argument(0, "cfg_list")
        if isinstance(words, list | tuple):
            for key, value in zip(words[::2], words[1::2], strict=False):
                found: dict[Any, Value] = {}
                given = options.literal(value) if isinstance(value, str) else value
                options.set_path(found, str(key), given)
                _take_over(receiver, found, 0)
        return None

    def _trainer_options(self, thing: Thing) -> Value:
        """`Trainer.from_argparse_args(args, …)` of Lightning, which knows each option
        of a trainer.
        """
        given = thing.argument(0, "args", default=None)
        keywords = dict(given.attributes) if isinstance(given, Thing) else {}
        keywords |= options.given_options(self._line)
        name = thing.name.removesuffix(".from_argparse_args")
        made = Thing(name, thing.place, [], {**keywords, **thing.keywords})
        made.facts["node"] = thing.facts["node"]
        self._host.record(made)
        return made

    def _lightning_cli(self, thing: Thing) -> Value:
        """`LightningCLI(Model, Data)`, which makes these and a trainer by options such
        as `--model.width`.
        """
        node = thing.facts["node"]
        defaults = thing.argument(-1, "trainer_defaults", default={})
        keywords = defaults if isinstance(defaults, dict) else {}
        keywords = {**keywords, **self._options_under("trainer")}
        trainer = Thing("pytorch_lightning.Trainer", thing.place, keywords=keywords)
        trainer.facts["node"] = node
        self._host.record(trainer)
        kinds = (("model", "model_class"), ("data", "datamodule_class"))
        for position, (group, name) in enumerate(kinds):
            kind = thing.argument(position, name)
            if isinstance(kind, UserClass | Function):
                given = self._options_under(group)
                self._host.call_value(kind, [], given, node, kind.scope)
        return thing

    def _options_under(self, group: str) -> dict[str, Value]:
        named = options.given_options(self._line).items()
        head = f"{group}."
        return {k.removeprefix(head): v for k, v in named if k.startswith(head)}

    def _parser(self, thing: Thing, scope: Scope) -> Value:
        """A parser, with the options of its parents."""
        parents = thing.argument(-1, "parents", default=[])
        for parent in parents if isinstance(parents, list | tuple) else []:
            if isinstance(parent, Thing):
                inherited = parent.facts.get("options", [])
                thing.facts.setdefault("options", []).extend(inherited)
        return thing

    def _method_add_argument(self, receiver: Thing, thing: Thing) -> Value:
        options.add_option(receiver, thing)
        return thing

    def _method_set_defaults(self, receiver: Thing, thing: Thing) -> Value:
        receiver.facts.setdefault("defaults", []).append(thing)
        return None

    def _method_add_argument_group(self, receiver: Thing, thing: Thing) -> Value:
        return receiver

    _method_add_mutually_exclusive_group = _method_add_argument_group
    _method_add_subparsers = _method_add_argument_group
    _method_add_parser = _method_add_argument_group

    def _method_parse_args(self, receiver: Thing, thing: Thing) -> Value:
        parsed = options.parsed_arguments(receiver, self._line)
        noted = Thing(parsed.name, parsed.place, keywords=dict(parsed.attributes))
        self._host.record(noted)
        return parsed

    def _method_parse_known_args(self, receiver: Thing, thing: Thing) -> Value:
        return (self._method_parse_args(receiver, thing), [])

    def _method_parse_args_into_dataclasses(
        self, receiver: Thing, thing: Thing
    ) -> Value:
        kinds = receiver.argument(0, "dataclass_types")
        kinds = kinds if isinstance(kinds, tuple | list) else (kinds,)
        node = thing.facts["node"]
        made = [
            options.from_command_line(self._host, k, self._line, node) for k in kinds
        ]
        needs_rest = thing.keywords.get("return_remaining_strings") is True
        return (*made, []) if needs_rest else tuple(made)

    _method_parse_args_and_config = _method_parse_args_into_dataclasses

    def _exec(self, thing: Thing, scope: Scope) -> Value:
        """Programs run a file whose options replace their global variables."""
        for name in self._line.others:
            if name.endswith(".py") and self._host.sources.text(name) is not None:
                self._host.run_file(name, scope.module)
        options.override(scope.module.names, self._line)
        return None

    def _replace(self, thing: Thing, scope: Scope) -> Value:
        copied = deep_copy(thing.argument(0), {})
        if isinstance(copied, Thing):
            copied.attributes.update(thing.keywords)
        return copied

    def _instantiate(self, thing: Thing, scope: Scope) -> Value:
        config = thing.argument(0, "config")
        if not isinstance(config, dict) or not isinstance(config.get("_target_"), str):
            return UNKNOWN
        keywords = {str(k): v for k, v in config.items() if not str(k).startswith("_")}
        keywords.update(thing.keywords)
        for name, value in keywords.items():
            if isinstance(value, dict) and "_target_" in value:
                inner = Thing(thing.name, thing.place, [value], facts=thing.facts)
                keywords[name] = self._instantiate(inner, scope)
        target = self._target(config["_target_"])
        if config.get("_partial_") is True:
            return Thing("functools.partial", thing.place, [target], keywords)
        arguments = thing.arguments[1:]
        return self._host.call_value(
            target, arguments, keywords, thing.facts["node"], scope
        )

    def _dotted(self, thing: Thing, scope: Scope) -> Value:
        path = thing.argument(0)
        return self._target(path) if isinstance(path, str) else UNKNOWN

    def _target(self, path: str) -> Value:
        """What a dotted path of a configuration means."""
        (module, _, name) = path.rpartition(".")
        found = self._host.sources.module(module, self._host.sources.entry)
        if found is None:
            return self.attribute(path)
        return self._host.imported(found).names.get(name, UNKNOWN)

    def suggested(self, arguments: list[Value]) -> Value:
        """What Optuna may try: of numbers the largest, so that all others fit, too."""
        choices = arguments[1:]
        if choices and isinstance(choices[0], list | tuple):
            choices = list(choices[0])
        numbers = [each for each in choices if number(each) is not None]
        if numbers and len(numbers) == len(choices):
            return max(numbers)
        return choices[0] if choices else UNKNOWN

    def _device_count(self, thing: Thing, scope: Scope) -> Value:
        return whole(self._host.environment.get("LOCAL_WORLD_SIZE")) or 1

    def _world_size(self, thing: Thing, scope: Scope) -> Value:
        return whole(self._host.environment.get("WORLD_SIZE")) or 1
