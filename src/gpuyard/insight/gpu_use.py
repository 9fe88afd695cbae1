"""Finds out whether a program is meant for a GPU, from its source and command, and
whether its output says that it found none.
"""

import ast
import re
import warnings
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from gpuyard.insight.imports import imported

# Modules that do nothing without a GPU.
_GPU_MODULES = frozenset(
    {"apex", "bitsandbytes", "cudf", "cuml", "cupy", "flash_attn", "pycuda", "vllm"}
)
_DEVICE = re.compile(r"cuda(?::\d{1,3})?|gpu(?::\d{1,3})?|/(?:device:)?gpu:\d{1,3}")
_DEVICE_NAMES = frozenset({"device", "device_type", "accelerator", "backend_device"})
_DEVICE_CALLS = frozenset({"to", "device"})
# A quick check: a source without any of these says nothing of GPUs.
_WORDS = re.compile(rf"cuda|gpu|{'|'.join(sorted(_GPU_MODULES))}", re.IGNORECASE)
_GPU_FLAG = re.compile(r"--(?:use[-_])?(?:cuda|gpus?)")
_DEVICE_OPTION = re.compile(r"--?(?:device|accelerator)")

_NO_GPU = (
    "CUDA not available",
    "CUDA is not available",
    "CUDA available: False",
    "No GPU/TPU found, falling back to CPU",  # JAX
    "GPU available: False",  # Lightning
    "Using cpu device",  # Stable-Baselines3
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "no CUDA-capable device is detected",
    "Could not find cuda drivers on your machine, GPU will not be used",  # TensorFlow
    "Setting accelerator to CPU. If you have GPU",  # DeepSpeed
)


def says_gpu(source: str, command: Sequence[str]) -> str | None:
    """What in the source of a program, or in its command, is meant for a GPU, such as
    `torch.cuda`; None if nothing is, or if the command chooses the CPU, as it does
    without an option by which the program would take a GPU.

    A word in a comment does not count. Never raises.
    """
    chosen = _chosen_device(command)
    if chosen is not None:
        return chosen if _DEVICE.fullmatch(chosen.lower()) else None
    if not _WORDS.search(source):
        return None
    switches = _gpu_switches(source)
    if switches and not any(word.partition("=")[0] in switches for word in command):
        return None
    return _sign_in(source)


def no_gpu_sign(line: str) -> str | None:
    """The words of a line that say that the program found no GPU; None if it says
    nothing of it. They are one of a few, so no secret can be in them.
    """
    if "GPU" not in line and "CUDA" not in line and "cpu" not in line:
        return None
    return next((sign for sign in _NO_GPU if sign in line), None)


@lru_cache(16)  # many jobs of one request run one program
def _sign_in(source: str) -> str | None:
    if any(module in source for module in _GPU_MODULES):
        modules = sorted(imported(source) & _GPU_MODULES)
        if modules:
            return f"import {modules[0]}"
    tree = _parsed(source)
    if tree is None:
        return None
    return next(filter(None, map(_sign_of_node, ast.walk(tree))), None)


@lru_cache(16)
def _gpu_switches(source: str) -> frozenset[str]:
    """The options without which the program stays on the CPU: a flag such as `--cuda`,
    or a `--device` whose default is `cpu`.
    """
    tree = _parsed(source) if "add_argument" in source else None
    if tree is None:
        return frozenset()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return frozenset(switch for call in calls for switch in _switches(call))


def _switches(call: ast.Call) -> list[str]:
    match call.func:
        case ast.Attribute(attr="add_argument"):
            pass
        case _:
            return []
    names = [str(item.value) for item in call.args if isinstance(item, ast.Constant)]
    given = {
        keyword.arg: keyword.value.value
        for keyword in call.keywords
        if isinstance(keyword.value, ast.Constant)
    }
    is_flag = given.get("action") == "store_true"
    if is_flag and any(_GPU_FLAG.fullmatch(name) for name in names):
        return names
    if given.get("default") == "cpu" and "--device" in names:
        return names
    return []


@lru_cache(2)  # each source is asked about twice, one after the other
def _parsed(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _chosen_device(command: Sequence[str]) -> str | None:
    """The value of `--device` or `--accelerator`; None without one."""
    for word, following in pairwise([*command, ""]):
        option, equals, value = word.partition("=")
        if _DEVICE_OPTION.fullmatch(option):
            return value if equals else following
    return None


def _sign_of_node(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(value=ast.Name(id="torch"), attr="cuda"):
            return "torch.cuda"
        case ast.Call(func=ast.Attribute(attr="cuda"), args=[]):
            return ".cuda()"
        case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=value)]):
            return _device(value) if name in _DEVICE_CALLS else None
        case ast.keyword(arg=str(name), value=ast.Constant(value=value)):
            return _device(value) if name in _DEVICE_NAMES else None
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
            return _device(value) if name in _DEVICE_NAMES else None
        case _:
            return None


def _device(value: object) -> str | None:
    """`device=cuda` if a value is the name of a GPU."""
    if isinstance(value, str) and _DEVICE.fullmatch(value.lower()):
        return f"device={value}"
    return None
