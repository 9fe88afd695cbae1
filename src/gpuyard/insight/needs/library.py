"""What libraries do when a program calls them: what they return, and what is noted."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
import builtins
import math
from collections.abc import Callable, Mapping
from typing import Any

from gpuyard.insight.needs import command_line as options
from gpuyard.insight.needs import keras
from gpuyard.insight.needs.datasets import data_method, recognise_data
from gpuyard.insight.needs.environments import give_spaces, is_vector, is_wrapper
from gpuyard.insight.needs.expressions import HEADS, Expressions, code_of
from gpuyard.insight.needs.layers import fill as fill_layer
from gpuyard.insight.needs.layers import freeze, is_layer
from gpuyard.insight.needs.model_calls import ModelCalls
from gpuyard.insight.needs.models import recognise, recognise_config
from gpuyard.insight.needs.python_calls import HANDLERS
from gpuyard.insight.needs.python_methods import python_method
from gpuyard.insight.needs.timm_layers import may_have_weights, timm_part
from gpuyard.insight.needs.values import (
    UNKNOWN,
    UNKNOWN_CLASS,
    UNKNOWN_REST,
    Bound,
    External,
    Function,
    Loop,
    Scope,
    Super,
    Thing,
    UserClass,
    Value,
    canonical,
    whole,
)

# Methods that give back their object.
_SELF = frozenset(
    {"to", "cuda", "cpu", "half", "float", "bfloat16", "train", "eval", "double"}
    | {"requires_grad_", "compile", "apply", "share_memory", "type", "detach"}
    | {"gradient_checkpointing_enable", "enable_input_require_grads", "freeze", "copy"}
    | {"merge_and_unload", "load_state_dict", "clone", "build"}
)
_WRAPPERS = frozenset(
    {
        "DataParallel",
        "DistributedDataParallel",
        "DDP",
        "FSDP",
        "FullyShardedDataParallel",
    }
    | {"compile", "get_peft_model", "prepare_model_for_kbit_training", "fully_shard"}
    | {"prepare_model_for_int8_training", "convert_sync_batchnorm", "prepare_model"}
    | {"auto_model", "auto_optim", "IntermediateLayerGetter"}
    | {"script", "AveragedModel", "ModelEmaV2", "inject_adapter_in_model", "jit"}
    | {
        "get_distribution_strategy",
        "weight_norm",
        "spectral_norm",
        "checkpoint_wrapper",
    }
)
_MODEL_BASES = frozenset(
    {"Module", "LightningModule", "PreTrainedModel", "Model", "ModelMixin"}
    | {"PyTorchModelHubMixin", "GenerationMixin", "Layer", "Sequential", "ModuleList"}
)
_RUNNERS = frozenset(
    {"spawn", "launch", "notebook_launcher", "debug_launcher", "start_processes", "run"}
    | {"Fire", "remote", "Process", "elastic_launch", "xmp_spawn", "TorchTrainer"}
)
_HOOKS = ("setup", "configure_model", "configure_optimizers", "train_dataloader")
_STATIC: Mapping[str, Any] = {
    "math.pi": math.pi,
    "numpy.pi": math.pi,
    "torch.nn.modules.Module": External("torch.nn.Module"),
    "torch.cuda.amp": External("torch.cuda.amp"),
    "typing.TYPE_CHECKING": False,
}
_PYTHON = frozenset(dir(builtins)) | {"reveal_type", "display", "get_ipython"}
_LONG_NAMES = {
    "tf": "tensorflow",
    "flax.linen": "flax.linen",
    "pl": "pytorch_lightning",
    "lightning.pytorch": "pytorch_lightning",
    "lightning": "pytorch_lightning",
    "sklearn": "sklearn",
    "tensorflow.keras": "keras",
    "tensorflow.python.keras": "keras",
    "tf_keras": "keras",
}


class Library(ModelCalls):
    """Stands for all libraries in the program that `host` follows."""

    python_names = _PYTHON

    def __init__(self, host: Expressions) -> None:
        super().__init__(host)
        self._building = 0
        self._hooked: list[Thing] = []
        self._special: dict[str, Callable[[Thing, Scope], Value]] = {
            "builtins.super": self._super,
            "builtins.exec": self._exec,
            "builtins.globals": lambda _thing, scope: scope.module.names,
            "builtins.locals": lambda _thing, scope: scope.names,
            "torch.cuda.is_available": lambda _thing, _scope: True,
            "torch.cuda.is_bf16_supported": lambda _thing, _scope: True,
            "torch.cuda.device_count": self._device_count,
            "torch.distributed.get_world_size": self._world_size,
            "torch.distributed.get_rank": lambda _thing, _scope: 0,
            "torch.distributed.is_available": lambda _thing, _scope: True,
            "torch.backends.mps.is_available": lambda _thing, _scope: False,
            "torch.xpu.is_available": lambda _thing, _scope: False,
            "torch.accelerator.is_available": lambda _thing, _scope: True,
            "torch.accelerator.device_count": self._device_count,
            "torch.accelerator.current_accelerator": _gpu_device,
            "ignite.distributed.device": _gpu_device,
            "ignite.distributed.get_world_size": self._world_size,
            "torch_geometric.device": _gpu_device,
            UNKNOWN_CLASS: self._part_of_pipeline,
            "torch.nn.Parameter": self._parameter,
            "torch.nn.parameter.Parameter": self._parameter,
            "hydra.utils.instantiate": self._instantiate,
            "hydra.utils.get_class": self._dotted,
            "fire.Fire": self._fire,
            "typer.run": self._run_function,
            "functools.partial": lambda thing, _scope: thing,
            "argparse.ArgumentParser": self._parser,
            "transformers.HfArgumentParser": lambda thing, _scope: thing,
            "trl.TrlParser": lambda thing, _scope: thing,
            "omegaconf.OmegaConf.from_cli": self._overrides,
            "deepspeed.initialize": self._deepspeed,
            "builtins.next": lambda thing, _scope: self.element(thing.argument(0)),
            "dataclasses.replace": self._replace,
        }

    @property
    def is_building(self) -> bool:
        """Whether a model is just being made."""
        return self._building > 0

    def attribute(self, name: str) -> Value:
        """What a dotted name of a library means."""
        for short, long in _LONG_NAMES.items():
            if name == short or name.startswith(f"{short}."):
                name = f"{long}{name[len(short) :]}"
                break
        if name in _STATIC:
            return _STATIC[name]
        if name.endswith("flags.FLAGS"):
            return self._flags
        if name == "sys.argv":
            return [self._host.sources.entry, *self._host.arguments]
        return External(name)

    # Calls.

    def call(self, thing: Thing, node: ast.AST, scope: Scope) -> Value:
        """The result of a call of a library's function or class."""
        thing.facts["node"] = node
        special = self._special.get(thing.name)
        if special is not None:
            self._host.record(thing)
            return special(thing, scope)
        handler = HANDLERS.get(thing.name)
        if handler is not None:
            return handler(self._host, thing)
        if thing.name.startswith("builtins."):
            return UNKNOWN
        last = thing.last_name
        if last.startswith("DEFINE_"):
            return self._define_flag(thing, last)
        if last == "LightningCLI":
            return self._lightning_cli(thing)
        if last in ("add_argparse_args", "add_config_arguments"):
            return thing.argument(0)
        if last in ("from_json_file", "from_yaml_file"):
            return self._config_from_file(thing, node, scope)
        if last == "from_argparse_args":
            return self._trainer_options(thing)
        if last == "cli" and not thing.name.startswith("click"):
            kind = thing.argument(0)
            return options.from_command_line(self._host, kind, self._line, node)
        if last in _RUNNERS and thing.arguments:
            return self._run_function(thing, scope)
        if last in _WRAPPERS and thing.arguments:
            return self._wrapped(thing)
        return self._made(thing)

    def _made(self, thing: Thing) -> Value:
        """The object that a call makes, with what is known of it."""
        if self._building:
            thing.facts["inside"] = True
        if keras.is_keras(thing.name):
            keras.fill(thing)
        elif is_layer(thing.name):
            fill_layer(thing, thing.name, thing.arguments, thing.keywords)
            thing.facts["is_model"] = True
        elif timm_part(thing):
            pass
        elif not recognise_config(thing) and not recognise(thing):
            recognise_data(thing)
            give_spaces(thing, self._environment_in(thing))
            if self._building and not thing.facts.get("data"):
                thing.facts["may_have_weights"] = may_have_weights(thing)
        self._host.record(thing)
        if keras.is_data(thing):
            return keras.data_of(thing)
        return thing

    def _environment_in(self, thing: Thing) -> Value:
        """The environment that stands in another."""
        if is_wrapper(thing):
            return thing.argument(0, "env")
        if not is_vector(thing):
            return UNKNOWN
        makers = thing.argument(0, "env_fns")
        first = makers[0] if isinstance(makers, list | tuple) and makers else UNKNOWN
        if not isinstance(first, Function):
            return UNKNOWN
        return self._host.call_value(first, [], {}, thing.facts["node"], first.scope)

    def call_method(
        self, receiver: Value, thing: Thing, node: ast.AST, scope: Scope
    ) -> Value:
        """The result of a method that a library or Python defines."""
        thing.facts["node"] = node
        if isinstance(receiver, Super):
            return self._super_method(receiver, thing)
        if not isinstance(receiver, Thing):
            return python_method(receiver, thing)
        name = thing.name
        thing.name = f"{canonical(receiver)}.{name}"
        method = getattr(self, f"_method_{name}", None)
        if method is not None:
            return method(receiver, thing)
        if name in _SELF:
            if name == "requires_grad_":
                freeze(receiver, frozen=thing.argument(0, default=True) is False)
            self._host.record(thing, receiver)
            return receiver
        if "data" in receiver.facts or "unknown_data" in receiver.facts:
            if name == "map" and isinstance(thing.argument(0, "function"), Function):
                function = thing.argument(0, "function")
                self._host.call_value(function, [UNKNOWN], {}, node, scope)
            thing.name = name
            found = data_method(receiver, thing)
            thing.name = f"{canonical(receiver)}.{name}"
            if found is not UNKNOWN:
                return found
        self._host.record(thing, receiver)
        return self._made_by_method(receiver, thing, name, scope)

    def _made_by_method(
        self, receiver: Thing, thing: Thing, name: str, scope: Scope
    ) -> Value:
        if name in ("prepare", "setup", "setup_module", "prepare_model"):
            given = thing.arguments
            return given[0] if len(given) == 1 else tuple(given)
        if name in ("parameters", "named_parameters", "trainable_parameters"):
            thing.facts["of"] = receiver
        if name in _RUNNERS and any(isinstance(a, Function) for a in thing.arguments):
            return self._run_function(thing, scope)
        if name in ("read", "read_text"):
            path = receiver.argument(0)
            text = self._host.sources.text(path) if isinstance(path, str) else None
            return UNKNOWN if text is None else text
        if name == "size" and isinstance(receiver.facts.get("size"), int):
            return receiver.facts["size"]
        return thing

    def call_thing(
        self,
        thing: Thing,
        arguments: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        scope: Scope,
    ) -> Value:
        """The result of calling an object."""
        if thing.name == "functools.partial" and thing.arguments:
            given = [*thing.arguments[1:], *arguments]
            merged = {**thing.keywords, **keywords}
            return self._host.call_value(thing.arguments[0], given, merged, node, scope)
        if thing.name.endswith(("Typer", ".group")) or thing.name.startswith("click."):
            return self._run_command(node, scope)
        if "layer" in thing.facts and keras.is_keras(canonical(thing)):
            return keras.call(thing, arguments)
        if thing.user_class is None and keywords:
            made = Thing(f"{thing.name}.__call__", self._host.place(node, scope))
            made.keywords = keywords
            made.facts["node"] = node
            self._host.record(made, thing)
        return UNKNOWN

    # Classes of the program.

    def begin(self, thing: Thing) -> None:
        """An object of a class of the program is about to be made."""
        if self._building and is_model_class(thing):
            thing.facts["inside"] = True
        if is_model_class(thing):
            self._building += 1

    def end(self, thing: Thing) -> None:
        """It has been made."""
        if _is_data_class(thing):
            thing.facts["is_own_data"] = True
            self._host.record(thing)
        if not is_model_class(thing):
            return
        self._building -= 1
        thing.facts["is_model"] = True
        self._host.record(thing)
        if any(
            name in ("configure_optimizers", "train_dataloader")
            for name in _defined(thing)
        ):
            self._hooked.append(thing)

    def fill(self, thing: Thing) -> None:
        """Give an object of a class without `__init__` what its bases give it."""
        user_class = thing.user_class
        if user_class is None:
            return
        if options.is_dataclass(user_class):
            self._fill_fields(thing, user_class)
        bases = user_class.library_bases()
        if bases and not options.is_dataclass(user_class):
            self._as_base(thing, bases[0], thing.arguments, thing.keywords)
        elif bases:
            self._as_base(thing, bases[0], [], dict(thing.attributes))

    def _fill_fields(self, thing: Thing, user_class: UserClass) -> None:
        fields = options.fields_of(user_class)
        is_given = UNKNOWN_REST in thing.keywords
        for name, default in fields.items():
            value = UNKNOWN if is_given else options.default_of(self._host, default)
            thing.attributes[name] = value
        thing.attributes.update(zip(fields, thing.arguments, strict=False))
        thing.attributes.update(thing.keywords)
        started = self._host.attribute(thing, "__post_init__")
        if isinstance(started, Bound):
            node = started.function.node
            self._host.call_value(started, [], {}, node, started.function.scope)

    def _as_base(
        self,
        thing: Thing,
        base: str,
        arguments: list[Value],
        keywords: dict[str, Value],
    ) -> None:
        """What the initializer of a library's class does to an object."""
        made = Thing(base, thing.place, arguments, keywords)
        made.facts["node"] = thing.facts.get("node")
        if made.last_name == "LightningCLI":
            self._lightning_cli(made)
        elif is_layer(base):
            fill_layer(thing, base, arguments, keywords)
        elif keras.is_keras(base):
            keras.fill(thing, base, arguments, keywords)
        elif recognise(made):
            thing.facts.update(made.facts)
            thing.attributes.update(made.attributes)
        elif base.endswith("Config"):
            thing.attributes.update(keywords)
        self._host.record(made, thing)

    def _super_method(self, parent: Super, thing: Thing) -> Value:
        bases = parent.owner.library_bases()
        if thing.name == "__init__" and bases:
            receiver = parent.receiver
            self._as_base(receiver, bases[0], thing.arguments, thing.keywords)
        return None if thing.name == "__init__" else UNKNOWN

    def _super(self, thing: Thing, scope: Scope) -> Value:
        here: Scope | None = scope
        while here is not None and (here.owner is None or here.owner.scope is here):
            here = here.parent
        if here is None or here.owner is None:
            return UNKNOWN
        first = thing.argument(1, default=None) or _find(here, "self")
        return Super(first, here.owner) if isinstance(first, Thing) else UNKNOWN

    def follow_hooks(self) -> None:
        """Call the methods that a trainer would call."""
        for thing in self._hooked:
            for name in _HOOKS:
                method = self._host.attribute(thing, name)
                if isinstance(method, Bound):
                    node = method.function.node
                    self._host.call_value(method, [], {}, node, method.function.scope)

    # Changes.

    def set_attribute(self, thing: Thing, name: str, value: Value) -> None:
        """`thing.name = value`."""
        if name in HEADS and "_head" in thing.attributes:
            del thing.attributes["_head"]
        if name == "requires_grad" and "of" in thing.facts:
            freeze(thing.facts["of"], frozen=value is False)
            return
        thing.facts.setdefault("set", []).append(name)
        if isinstance(value, Thing) and "is_model" in thing.facts:
            value.facts["inside"] = True
        thing.attributes[name] = value

    def set_item(self, owner: Value, key: Value, value: Value) -> None:
        """`owner[key] = value`."""
        if isinstance(owner, External) and owner.name == "os.environ":
            if isinstance(key, str) and isinstance(value, str):
                self._host.environment[key] = value
        elif isinstance(owner, dict | list):
            _put(owner, key, value)
        elif isinstance(owner, Thing) and "head_of" in owner.facts:
            owner.facts["head_of"].attributes["_head"] = value
        elif isinstance(owner, Thing):
            children = owner.attributes.get("_children")
            if isinstance(children, list | dict):
                self.set_item(children, key, value)
            elif isinstance(key, str):
                owner.attributes[key] = value

    def element(self, over: Value) -> Value:
        """One element of what a loop runs over."""
        if isinstance(over, Thing) and "of" in over.facts:
            named = over.name.endswith("named_parameters")
            return (UNKNOWN, over) if named else over
        return UNKNOWN

    def while_loop(self, node: ast.While, scope: Scope, depth: int) -> Loop:
        """A loop `while step < limit` that trains."""
        count = None
        target = ""
        if isinstance(node.test, ast.Compare):
            target = code_of(node.test.left)
            count = whole(self._host.evaluate(node.test.comparators[0], scope))
        return Loop(self._host.place(node, scope), target, count, UNKNOWN, depth)


def _is_data_class(thing: Thing) -> bool:
    """Whether an object of a class of the program is a dataset of PyTorch's."""
    bases = thing.user_class.library_bases() if thing.user_class else []
    return any(base.startswith("torch") and base.endswith("Dataset") for base in bases)


def is_model_class(thing: Thing) -> bool:
    """Whether an object of a class of the program is a model or a layer."""
    bases = thing.user_class.library_bases() if thing.user_class else []
    for base in bases:
        last = base.rpartition(".")[2]
        if (
            last in _MODEL_BASES
            or is_layer(base)
            or last.endswith(("PreTrainedModel", "Model"))
        ):
            return True
        if last.endswith(("ForCausalLM", "Classification", "LMHeadModel")):
            return True
    return False


def _put(owner: Value, key: Value, value: Value) -> None:
    """`owner[key] = value` for a dict or a list, if it has such a place."""
    is_hashable = isinstance(key, str | int | float | tuple)
    is_inside = isinstance(key, int) and -len(owner) <= key < len(owner)
    if is_inside or (isinstance(owner, dict) and is_hashable):
        owner[key] = value


def _defined(thing: Thing) -> set[str]:
    ancestry = thing.user_class.ancestry() if thing.user_class else []
    return {name for each in ancestry for name in each.scope.names}


def _find(scope: Scope, name: str) -> Value:
    try:
        return scope.find(name)
    except KeyError:
        return None


def _gpu_device(thing: Thing, _scope: Scope) -> Value:
    """The device that a library chooses where there is a GPU."""
    made = Thing("torch.device", thing.place, ["cuda"])
    made.attributes["type"] = "cuda"
    return made
