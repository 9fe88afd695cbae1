"""Commands of libraries that train or run models without a program of one's own: for
each, a Python program that needs the same, to be read in its place.
"""

import re
from collections.abc import Callable, Mapping, Sequence

_MOST_WORDS = 200
_LONGEST_VALUE = 500
_LONGEST_COUNT = 5  # digits
# Options of vLLM, as its class names them.
_WAYS: Mapping[str, str] = {
    "--tensor-parallel-size": "tensor_parallel_size",
    "-tp": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size",
    "-pp": "pipeline_parallel_size",
}
# As Python reads it: without zeros before it.
_NUMBER = re.compile(r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_TRAINER = """\
from transformers import HfArgumentParser, Trainer, TrainingArguments
args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]
Trainer(args=args).train()
"""
_FACTORY = """\
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer
from transformers import TrainingArguments
args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]
model = AutoModelForCausalLM.from_pretrained(None, torch_dtype="bfloat16")
model.gradient_checkpointing_enable()
Trainer(model=model, args=args).train()
"""


def program_of_tool(words: Sequence[str]) -> str | None:
    """A Python program that needs what the words of a command need; None for a command
    that is no known tool.
    """
    if not words or len(words) > _MOST_WORDS:
        return None
    tool = _TOOLS.get(words[0].rpartition("/")[2])
    return tool(words[1:]) if tool else None


def _yolo(words: Sequence[str]) -> str | None:
    """Ultralytics: `yolo detect train model=yolo11n.pt epochs=100`."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    plain = [word for word in words if "=" not in word]
    mode = given.get("mode", next((w for w in plain if w in _YOLO_MODES), "predict"))
    name = given.get("model", "")
    is_own = "/" in name or "{" in name
    if not name or (is_own and mode != "train"):
        return None  # that only uses what was trained before
    options = [
        f"{key}={_value(value)}"
        for key, value in given.items()
        if key in _YOLO_OPTIONS and len(value) <= _LONGEST_VALUE
    ]
    method = mode if mode in _YOLO_MODES else "predict"
    return (
        "from ultralytics import YOLO\n"
        f"YOLO({name[:_LONGEST_VALUE]!r}).{method}({', '.join(options)})\n"
    )


def _value(text: str) -> str:
    return text if _NUMBER.fullmatch(text) else repr(text)


def _trainer(words: Sequence[str]) -> str:
    """What trains with the trainer of Transformers, by options or by a YAML file."""
    return _TRAINER


def _factory(words: Sequence[str]) -> str:
    """LLaMA-Factory: it loads models in half precision, and computes activations again
    without being told.
    """
    return _FACTORY


def _served(words: Sequence[str]) -> str | None:
    """vLLM: `vllm serve NAME`."""
    names = [word for word in words[1:2] if not word.startswith("-")]
    if words[:1] != ["serve"] or not names:
        return None
    options = "".join(f", {name}={count}" for name, count in _ways(words).items())
    return f"from vllm import LLM\nLLM({names[0][:_LONGEST_VALUE]!r}{options})\n"


def _ways(words: Sequence[str]) -> dict[str, str]:
    """In how many parts options of vLLM split a model."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        (option, equals, value) = word.partition("=")
        given = value if equals else "".join(words[at + 1 : at + 2])
        name = _WAYS.get(option.replace("_", "-"))
        if name and _NUMBER.fullmatch(given) and len(given) < _LONGEST_COUNT:
            found[name] = given
    return found


def _evaluated(words: Sequence[str]) -> str:
    """The evaluation harness of EleutherAI: `lm_eval --model_args pretrained=NAME`."""
    return "import torch\ntorch.cuda.init()\n"


_YOLO_MODES = ("train", "val", "predict", "export", "track", "benchmark", "tune")
_YOLO_OPTIONS = ("epochs", "imgsz", "batch", "data", "optimizer")
_TOOLS: Mapping[str, Callable[[Sequence[str]], str | None]] = {
    "yolo": _yolo,
    "llamafactory-cli": _factory,
    "axolotl": _trainer,
    "trl": _trainer,
    "vllm": _served,
    "lm_eval": _evaluated,
    "lm-eval": _evaluated,
}
