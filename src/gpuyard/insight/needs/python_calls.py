"""What calls of Python's own functions give, where their arguments are known."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gpuyard.insight.needs.config_files import parsed_config
from gpuyard.insight.needs.expressions import MOST_ROUNDS, Expressions
from gpuyard.insight.needs.operators import LONGEST, is_small, product
from gpuyard.insight.needs.python_methods import PLAIN, is_plain
from gpuyard.insight.needs.values import (
    UNKNOWN,
    Bound,
    External,
    Function,
    Parameter,
    Tensor,
    Thing,
    UserClass,
    Value,
    number,
)

Handler: TypeAlias = Callable[[Expressions, Thing], Value]

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "list": list,
    "tuple": tuple,
    "dict": dict,
}
_LONGEST_LITERAL = 200_000
# Parts of a value that is copied.
_MOST_COPIED = 20_000
_READ_IN_A_STEP = 4  # characters


def _of_plain(function: Callable[..., Any]) -> Handler:
    """A handler that applies a function if all arguments are known and plain."""

    def handler(_host: Expressions, thing: Thing) -> Value:
        arguments = thing.arguments
        if thing.keywords or not all(map(is_plain, arguments)):
            return UNKNOWN
        try:
            return function(*arguments)
        except (TypeError, ValueError, ArithmeticError, KeyError, IndexError):
            return UNKNOWN

    return handler


def _length(host: Expressions, thing: Thing) -> Value:
    value = thing.argument(0)
    match value:
        case str() | list() | tuple() | dict() | range() | set():
            return len(value)
        case Thing() if "_children" in value.attributes:
            return len(value.attributes["_children"])
        case Thing() if isinstance(value.facts.get("size"), int):
            return value.facts["size"]
        case Thing() if value.user_class is not None:
            method = host.attribute(value, "__len__")
            if isinstance(method, Bound):
                node = method.function.node
                return host.call_value(method, [], {}, node, method.function.scope)
            return UNKNOWN
        case _:
            return UNKNOWN


def _list(host: Expressions, thing: Thing) -> Value:
    if not thing.arguments:
        return []
    rounds = host.rounds(thing.arguments[0])
    if rounds is None or len(rounds) > MOST_ROUNDS * 4:
        over = thing.arguments[0]
        return over if isinstance(over, Thing) else UNKNOWN
    return list(rounds)


def _tuple(host: Expressions, thing: Thing) -> Value:
    found = _list(host, thing)
    return tuple(found) if isinstance(found, list) else found


def _dict(host: Expressions, thing: Thing) -> Value:
    found: dict[Value, Value] = {}
    first = thing.argument(0, default=None)
    if isinstance(first, dict):
        found.update(first)
    elif isinstance(first, list | tuple):
        pairs = [pair for pair in first if isinstance(pair, tuple) and len(pair) == 2]
        found.update({k: v for k, v in pairs if isinstance(k, str | int)})
    elif isinstance(first, Thing):
        found.update(first.attributes)
    found.update(thing.keywords)
    return found


def _enumerate(host: Expressions, thing: Thing) -> Value:
    rounds = host.rounds(thing.argument(0))
    if rounds is None or len(rounds) > MOST_ROUNDS:
        return thing.argument(0) if isinstance(thing.argument(0), Thing) else UNKNOWN
    start = thing.argument(1, "start", default=0)
    return list(enumerate(rounds, start if isinstance(start, int) else 0))


def _zip(host: Expressions, thing: Thing) -> Value:
    all_rounds = [host.rounds(each) for each in thing.arguments]
    known_rounds = [rounds for rounds in all_rounds if rounds is not None]
    if len(known_rounds) < len(all_rounds):
        return UNKNOWN
    shortest = min(map(len, known_rounds), default=0)
    if shortest > MOST_ROUNDS:
        return UNKNOWN
    return list(zip(*known_rounds, strict=False))


def _reversed(host: Expressions, thing: Thing) -> Value:
    rounds = host.rounds(thing.argument(0))
    if rounds is None or len(rounds) > MOST_ROUNDS:
        return UNKNOWN
    return list(reversed(rounds))


def _range(_host: Expressions, thing: Thing) -> Value:
    numbers = [number(each) for each in thing.arguments]
    found = [int(each) for each in numbers if each is not None and abs(each) < 1e15]
    if not found or len(found) < len(numbers) or len(found) > 3 or found[2:] == [0]:
        return UNKNOWN
    return range(*found)


def _sum(_host: Expressions, thing: Thing) -> Value:
    values = thing.argument(0)
    if not isinstance(values, list | tuple):
        return UNKNOWN
    if not all(isinstance(each, int | float) for each in values):
        return UNKNOWN
    return sum(values)


def _getattr(host: Expressions, thing: Thing) -> Value:
    owner = thing.argument(0)
    name = thing.argument(1)
    if not isinstance(name, str):
        return UNKNOWN
    found = host.attribute(owner, name)
    is_own = isinstance(owner, Thing) and name not in owner.attributes
    is_missing = is_own and not isinstance(found, Bound) and len(thing.arguments) > 2
    return thing.arguments[2] if is_missing else found


def _setattr(host: Expressions, thing: Thing) -> Value:
    owner = thing.argument(0)
    name = thing.argument(1)
    if isinstance(owner, Thing) and isinstance(name, str):
        owner.attributes[name] = thing.argument(2)
    return None


def _hasattr(_host: Expressions, thing: Thing) -> Value:
    owner = thing.argument(0)
    if isinstance(owner, Thing) and thing.argument(1) in owner.attributes:
        return True
    return UNKNOWN


def _isinstance(_host: Expressions, thing: Thing) -> Value:
    value = thing.argument(0)
    wanted = thing.argument(1)
    kinds = wanted if isinstance(wanted, tuple | list) else (wanted,)
    found = [_is_of(value, kind) for kind in kinds]
    if True in found:
        return True
    return UNKNOWN if UNKNOWN in found else False


def _is_of(value: Value, kind: Value) -> Value:
    if isinstance(value, Thing) and isinstance(kind, UserClass):
        return bool(value.user_class and kind in value.user_class.ancestry())
    if isinstance(value, Thing) and isinstance(kind, External) and not value.user_class:
        same = value.name.rpartition(".")[2] == kind.name.rpartition(".")[2]
        return True if same else UNKNOWN
    if isinstance(kind, External) and isinstance(value, (*PLAIN, list, tuple, dict)):
        python_type = _TYPES.get(kind.name.removeprefix("builtins."))
        return isinstance(value, python_type) if python_type else UNKNOWN
    return UNKNOWN


def _open(host: Expressions, thing: Thing) -> Value:
    return thing


def _text_of(host: Expressions, value: Value) -> str | None:
    """The text of a file that a value names: a path, `open(…)` or `Path(…)`."""
    if isinstance(value, Thing) and value.last_name in ("open", "Path", "read_text"):
        value = value.argument(0)
    if not isinstance(value, str):
        return None
    return host.sources.text(value)


def _read_config(host: Expressions, thing: Thing) -> Value:
    text = _text_of(host, thing.argument(0))
    if text is None:
        return UNKNOWN
    # A program may read a long file again and again.
    host.steps_left -= len(text) // _READ_IN_A_STEP
    return parsed_config(text)


def _literal(_host: Expressions, thing: Thing) -> Value:
    text = thing.argument(0)
    if not isinstance(text, str) or len(text) > _LONGEST_LITERAL:
        return UNKNOWN
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return UNKNOWN


def _join(_host: Expressions, thing: Thing) -> Value:
    parts = thing.arguments
    texts = [part.rstrip("/") for part in parts if isinstance(part, str)]
    length = sum(map(len, texts)) + len(texts)
    if len(texts) < len(parts) or length > LONGEST:
        return UNKNOWN
    return "/".join(texts)


def _environment(host: Expressions, thing: Thing) -> Value:
    name = thing.argument(0, "key")
    default = thing.argument(1, "default", default=None)
    return host.environment.get(name, default) if isinstance(name, str) else UNKNOWN


def _merged(_host: Expressions, thing: Thing) -> Value:
    found: dict[Value, Value] = {}
    for each in thing.arguments:
        if isinstance(each, Thing):
            each = each.attributes
        if isinstance(each, dict) and is_small(each):
            found = _deep_merge(found, each)
    return found


def _deep_merge(old: dict[Value, Value], new: dict[Value, Value]) -> dict[Value, Value]:
    merged = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[key] = _deep_merge(dict(before or {}), value) if both else value
    return merged


def _as_dict(_host: Expressions, thing: Thing) -> Value:
    value = thing.argument(0)
    if isinstance(value, Thing):
        return {k: v for k, v in value.attributes.items() if not k.startswith("_")}
    return dict(value) if isinstance(value, dict) else UNKNOWN


def _deep_copy(host: Expressions, thing: Thing) -> Value:
    return copied_model(host, thing.argument(0))


def _filtered(_host: Expressions, thing: Thing) -> Value:
    """Of the weights of a model, those that are trained."""
    weights = thing.argument(1)
    return weights if isinstance(weights, Thing) and "of" in weights.facts else UNKNOWN


def copied_model(host: Expressions, value: Value) -> Value:
    """A copy of a value; that of a model counts beside it."""
    seen: dict[int, Value] = {}
    copy = deep_copy(value, seen)
    # A program may copy a model into itself, so that it doubles each time.
    host.steps_left -= len(seen)
    if (
        isinstance(value, Thing)
        and isinstance(copy, Thing)
        and value.facts.get("is_model")
    ):
        value.facts["copied"] = True
        copy.facts.pop("inside", None)
        host.record(copy)
    return copy


def deep_copy(value: Value, seen: dict[int, Value]) -> Value:
    """A copy of a value that shares no weight with it."""
    if id(value) in seen:
        return seen[id(value)]
    if len(seen) > _MOST_COPIED:
        return value
    if isinstance(value, Parameter):
        copied: Value = Parameter(value.count, value.shape)
    elif isinstance(value, Thing):
        copied = Thing(value.name, value.place, value.arguments, value.keywords)
        seen[id(value)] = copied
        copied.user_class = value.user_class
        copied.facts = dict(value.facts)
        copied.attributes = {
            name: deep_copy(each, seen) for name, each in value.attributes.items()
        }
    elif isinstance(value, list):
        copied = [deep_copy(each, seen) for each in value]
    elif isinstance(value, dict):
        copied = {key: deep_copy(each, seen) for key, each in value.items()}
    else:
        copied = value
    seen[id(value)] = copied
    return copied


def _chosen(which: Callable[..., Any]) -> Handler:
    def handler(_host: Expressions, thing: Thing) -> Value:
        values = thing.arguments
        if len(values) == 1 and isinstance(values[0], list | tuple):
            values = list(values[0])
        numbers = [each for each in values if isinstance(each, int | float)]
        if not numbers or len(numbers) < len(values):
            return UNKNOWN
        return which(numbers)

    return handler


def _first(_host: Expressions, thing: Thing) -> Value:
    return thing.argument(0)


def _size(_host: Expressions, thing: Thing) -> Value:
    shape = thing.argument(0)
    whole = shape if isinstance(shape, tuple | list) else tuple(thing.arguments)
    sizes = tuple(each for each in whole if isinstance(each, int))
    return Tensor(sizes if len(sizes) == len(whole) and sizes else None)


def _nothing(_host: Expressions, _thing: Thing) -> Value:
    return ()


def _pair(_host: Expressions, thing: Thing) -> Value:
    value = thing.argument(0)
    return value if isinstance(value, tuple | list) else (value, value)


def _arange(_host: Expressions, thing: Thing) -> Value:
    last = thing.argument(0)
    return Tensor((last,)) if isinstance(last, int) else Tensor()


def _convert(kind: Callable[[Any], Any]) -> Handler:
    plain = _of_plain(kind)

    def handler(host: Expressions, thing: Thing) -> Value:
        if not thing.arguments:
            return kind("0") if kind is not str else ""
        return plain(host, thing)

    return handler


def _truth(host: Expressions, thing: Thing) -> Value:
    return _of_plain(bool)(host, thing)


def _import(host: Expressions, thing: Thing) -> Value:
    name = thing.argument(0)
    if not isinstance(name, str):
        return UNKNOWN
    path = host.sources.module(name.lstrip("."), host.sources.entry)
    return External(name) if path is None else host.imported(path)


def _map(host: Expressions, thing: Thing) -> Value:
    function = thing.argument(0)
    rounds = host.rounds(thing.argument(1))
    if rounds is None or len(rounds) > MOST_ROUNDS or isinstance(function, Function):
        return UNKNOWN
    node = ast.Constant(None)
    scope = host.imported(host.sources.entry)
    return [host.call_value(function, [each], {}, node, scope) for each in rounds]


def _cells_of_json(host: Expressions, thing: Thing) -> Value:
    text = thing.argument(0)
    try:
        return json.loads(text) if isinstance(text, str) else UNKNOWN
    except (ValueError, RecursionError):
        return UNKNOWN


_MATH = ("sqrt", "log", "log2", "log10", "ceil", "floor", "gcd")

HANDLERS: Mapping[str, Handler] = {
    "builtins.len": _length,
    "builtins.list": _list,
    "builtins.tuple": _tuple,
    "builtins.set": _list,
    "builtins.sorted": _list,
    "builtins.iter": _first,
    "builtins.dict": _dict,
    "builtins.enumerate": _enumerate,
    "builtins.zip": _zip,
    "builtins.reversed": _reversed,
    "builtins.range": _range,
    "builtins.sum": _sum,
    "builtins.getattr": _getattr,
    "builtins.setattr": _setattr,
    "builtins.hasattr": _hasattr,
    "builtins.isinstance": _isinstance,
    "builtins.open": _open,
    "builtins.map": _map,
    "builtins.vars": _as_dict,
    "builtins.eval": _literal,
    "builtins.int": _convert(int),
    "builtins.float": _convert(float),
    "builtins.str": _convert(str),
    "builtins.bool": _truth,
    "builtins.abs": _of_plain(abs),
    "builtins.round": _of_plain(round),
    "builtins.min": _chosen(min),
    "builtins.max": _chosen(max),
    **{f"math.{name}": _of_plain(getattr(math, name)) for name in _MATH},
    **{f"numpy.{name}": _of_plain(getattr(math, name)) for name in _MATH[:6]},
    "math.prod": _of_plain(product),
    "numpy.prod": _of_plain(product),
    "numpy.array": _of_plain(list),
    "ast.literal_eval": _literal,
    "json.loads": _cells_of_json,
    "json.load": _read_config,
    "yaml.safe_load": _read_config,
    "yaml.full_load": _read_config,
    "yaml.load": _read_config,
    "ruamel_yaml.load": _read_config,
    "ruamel.yaml.load": _read_config,
    "omegaconf.OmegaConf.missing_keys": _nothing,
    "tomllib.load": _read_config,
    "toml.load": _read_config,
    "omegaconf.OmegaConf.load": _read_config,
    "omegaconf.OmegaConf.create": _merged,
    "omegaconf.OmegaConf.merge": _merged,
    "omegaconf.OmegaConf.to_container": _first,
    "omegaconf.OmegaConf.structured": _first,
    "types.SimpleNamespace": _dict,
    "argparse.Namespace": _dict,
    "easydict.EasyDict": _dict,
    "tensorflow.contrib.training.HParams": _dict,
    "munch.Munch": _dict,
    "ml_collections.ConfigDict": _dict,
    "ml_collections.config_dict.ConfigDict": _dict,
    "collections.OrderedDict": _dict,
    "collections.defaultdict": lambda _host, _thing: {},
    "os.path.join": _join,
    "os.environ.get": _environment,
    "os.getenv": _environment,
    "dataclasses.asdict": _as_dict,
    "builtins.filter": _filtered,
    "copy.deepcopy": _deep_copy,
    "copy.copy": _deep_copy,
    "importlib.import_module": _import,
    "functools.wraps": _first,
    "tqdm.tqdm": _first,
    "tqdm.auto.tqdm": _first,
    "tqdm.notebook.tqdm": _first,
    "tqdm.trange": _range,
    "tqdm.auto.trange": _range,
    "tqdm.rich.tqdm": _first,
    "rich.progress.track": _first,
    **{
        f"timm.{module}.to_2tuple": _pair
        for module in ("layers", "layers.helpers", "models.layers")
    },
    "torch.arange": _arange,
    **{
        f"{module}.{name}": _size
        for module in ("torch", "numpy", "jax.numpy")
        for name in ("zeros", "ones", "randn", "rand", "empty")
    },
    "torch.Tensor": _size,
    "torch.FloatTensor": _size,
    "torch.randint": lambda _host, thing: Tensor(),
}
