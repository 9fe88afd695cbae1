"""Finds out from a training program's source how it is told to resume."""

import ast
import warnings
from collections.abc import Iterator

# What gpuyard sets; who reads it needs no option.
_OURS = "GPUYARD_RESUME_FROM"
_PATH = "{path}"
# Options by which programs are given a checkpoint; the first that one has is proposed.
_OPTIONS = (
    "resume_from_checkpoint",
    "resume_from",
    "resume_path",
    "resume",
    "load_checkpoint",
    "load_from",
    "ckpt_path",
    "restore_from",
    "restore",
    "load",
)
_DECLARING = frozenset({"add_argument", "option", "Option"})
_FLAGS = frozenset({"store_true", "BooleanOptionalAction"})


def resume_arguments(source: str) -> tuple[str, ...]:
    """The arguments with which the program goes on at a checkpoint, whose path stands
    for `{path}`; none if it needs none, or it is not known. Never raises.
    """
    if _OURS in source:
        return ()
    if "init_from" in source and _has_text(source, "resume"):
        return ("--init_from=resume",)  # nanoGPT's configurator
    if "HfArgumentParser" in source and "TrainingArguments" in source:
        return ("--resume_from_checkpoint", _PATH)
    if "LightningCLI" in source:
        return ("--ckpt_path", _PATH)
    declared = dict(_options(source))
    for name in _OPTIONS:
        for option in (f"--{name}", f"--{name.replace('_', '-')}"):
            if option in declared:
                return (option,) if declared[option] else (option, _PATH)
    return ()


def _has_text(source: str, text: str) -> bool:
    return f"'{text}'" in source or f'"{text}"' in source


def _options(source: str) -> Iterator[tuple[str, bool]]:
    """The options that the program declares, and whether each is a flag."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in _DECLARING:
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value), _is_flag(node)


def _name(function: ast.expr) -> str:
    match function:
        case ast.Attribute():
            return function.attr
        case ast.Name():
            return function.id
        case _:
            return ""


def _is_flag(call: ast.Call) -> bool:
    for keyword in call.keywords:
        if keyword.arg == "is_flag":
            value = keyword.value
            return isinstance(value, ast.Constant) and value.value is True
        if keyword.arg == "action":
            action = keyword.value
            named = action.value if isinstance(action, ast.Constant) else _name(action)
            return named in _FLAGS
    return False
