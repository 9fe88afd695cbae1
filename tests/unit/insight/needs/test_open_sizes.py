"""Loops and branches that nobody can follow, and sizes that need more than they seem."""

from typing import Any

import pytest

from gpuyard.insight.needs.tools import program_of_tool
from tests.support.read_programs import needs

TORCH = "import os, torch\nfrom torch import nn\n"
BLOCK = (
    "class Block(nn.Module):\n    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.a = nn.Linear(100, 100, bias=False)\n"
)
TRAINED = "batch_size = 8\ntorch.optim.Adam(net.cuda().parameters())\n"
UNKNOWN = "range(int(os.environ['N']))"


def _of_layers(*lines: str) -> dict[str, Any]:
    """What a net needs whose layers these lines of its initializer make."""
    body = "".join(f"        {line}\n" for line in lines)
    return needs(
        f"{TORCH}{BLOCK}class Net(nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n{body}net = Net()\n{TRAINED}"
    )


_LOOPS = [
    ("self.all = nn.ModuleList([Block() for _ in {}])",),
    ("self.all = nn.Sequential(*[Block() for _ in {}])",),
    ("self.all = nn.ModuleDict({{str(i): Block() for i in {}}})",),
    ("layers = []", "for _ in {}:", "    layers.append(Block())", "self.all = layers"),
    ("for step in {}:", "    self.add_module(f'layer{{step}}', Block())"),
]


@pytest.mark.parametrize("lines", _LOOPS)
def test_a_loop_that_nobody_can_count_makes_the_confidence_low(
    lines: tuple[str, ...],
) -> None:
    found = _of_layers(*(line.format(UNKNOWN) for line in lines))
    assert found["parameters"] == 10_000
    assert found["confidence"] == "low"
    assert "nobody knows how often" in str(found["lines"])


def test_an_encoder_of_unknown_layers_makes_the_confidence_low() -> None:
    layer = "nn.TransformerEncoderLayer(64, 8)"
    found = _of_layers(
        f"self.a = nn.TransformerEncoder({layer}, int(os.environ['N']))",
    )
    assert found["parameters"] == _of_layers(f"self.a = {layer}")["parameters"]
    assert found["confidence"] == "low"


@pytest.mark.parametrize("lines", [*_LOOPS[:2], *_LOOPS[3:]])
def test_layers_of_a_long_loop_count_as_often_as_it_runs(
    lines: tuple[str, ...],
) -> None:
    found = _of_layers(*(line.format("range(5000)") for line in lines))
    assert found["parameters"] == 5000 * 10_000
    assert found["confidence"] == "high"
    longer = _of_layers(*(line.format("range(10**6)") for line in lines))
    assert longer["confidence"] == "low"


def test_rounds_of_a_long_loop_that_differ_are_not_counted() -> None:
    found = _of_layers(
        "for i in range(1000):", "    setattr(self, f'l{i}', nn.Linear(i, i))"
    )
    assert found["confidence"] == "low"
    shared = _of_layers(
        "one = Block()",
        "self.all = nn.ModuleList([nn.Sequential(one) for _ in range(1000)])",
        "self.one = one",
    )
    assert shared["parameters"] == 10_000


def test_a_model_that_is_made_in_each_round_is_not_counted_again() -> None:
    source = f"{TORCH}{BLOCK}for name in open('names'):\n    net = Block().cuda()\n"
    found = needs(f"{source}{TRAINED}")
    assert found["parameters"] == 10_000
    assert found["confidence"] == "high"
    kept = source.replace("net =", "nets.append(").replace(".cuda()", ")")
    kept = kept.replace("for name", "nets = []\nfor name")
    assert needs(f"{kept}net = nets[0]\n{TRAINED}")["confidence"] == "low"


_SMALL = "nn.Linear(10, 10, bias=False)"
_LARGE = "nn.Linear(1000, 1000, bias=False)"


@pytest.mark.parametrize("pair", [(_SMALL, _LARGE), (_LARGE, _SMALL)])
@pytest.mark.parametrize(
    "code",
    [
        "if unknown():\n    net = {}\nelse:\n    net = {}\n",
        "net = {} if unknown() else {}\n",
        "match unknown():\n    case 1:\n        net = {}\n    case _:\n"
        "        net = {}\n",
        "def made():\n    if unknown():\n        return {}\n    return {}\nnet = made()\n",
        "def made():\n    if unknown():\n        return {}\n    else:\n"
        "        return {}\nnet = made()\n",
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        if unknown():\n            self.a = {}\n        else:\n"
        "            self.a = {}\nnet = Net()\n",
    ],
    ids=["if", "expression", "match", "return", "returns", "attribute"],
)
def test_the_larger_of_two_models_counts(code: str, pair: tuple[str, str]) -> None:
    found = needs(f"{TORCH}from mine import unknown\n{code.format(*pair)}{TRAINED}")
    assert found["parameters"] == found["trainable_parameters"] == 10**6


def test_the_optimiser_of_the_larger_model_counts() -> None:
    branch = "    net = {}.cuda()\n    torch.optim.{}(net.parameters())\n"
    small = branch.format(_SMALL, "SGD")
    large = branch.format(_LARGE, "Adam")
    source = f"{TORCH}from mine import unknown\nif unknown():\n{small}else:\n{large}"
    assert "Adam keeps 8 bytes" in str(needs(source)["lines"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ".double()"),
        ("", ".to(torch.float64)"),
        ("torch.set_default_dtype(torch.float64)\n", ""),
    ],
)
def test_numbers_of_double_precision_take_twice_as_much(
    before: str, after: str
) -> None:
    source = TORCH + "{}net = nn.Linear(10000, 10000, bias=False){}\n" + TRAINED
    usual = needs(source.format("", ""))["memory_gb"]
    double = needs(source.format(before, after))["memory_gb"]
    for part in ("weights", "gradients", "optimiser"):
        assert double[part] == pytest.approx(2 * usual[part], rel=0.02)
    cast = source.format("torch.from_numpy(x).double()\n", "")
    assert needs(cast)["memory_gb"] == usual


def test_vllm_splits_the_weights() -> None:
    source = "from vllm import LLM\nLLM('meta-llama/Llama-2-7b-hf'{})\n"
    whole = needs(source.format(""))["memory_gb"]["weights"]
    found = needs(source.format(", tensor_parallel_size=4, pipeline_parallel_size=2"))
    assert found["needs"]["gpus"] == 8
    assert found["memory_gb"]["weights"] == pytest.approx(whole / 8, rel=0.01)


def test_a_map_of_devices_splits_the_weights_over_the_gpus_of_one_process() -> None:
    source = (
        "import os, torch\n{}from transformers import AutoModelForCausalLM\n"
        "AutoModelForCausalLM.from_pretrained('gpt2-large', device_map='auto')\n"
    )
    whole = needs(source.format(""))["memory_gb"]["weights"]
    two = needs(source.format("os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\n"))
    assert two["memory_gb"]["weights"] == pytest.approx(whole / 2, rel=0.01)
    own = needs(source.format(""), "--gpus", "2")
    assert own["memory_gb"]["weights"] == whole


@pytest.mark.parametrize(
    "layer",
    [
        "nn.Parameter(torch.randn(1, 64, 32, 3, 3))",
        "nn.Conv1d(80, 512, 7)",
        "nn.Conv3d(1, 32, 3)",
    ],
)
def test_convolutions_that_cannot_be_followed_make_the_confidence_medium(
    layer: str,
) -> None:
    found = _of_layers(f"self.a = {layer}", "self.b = nn.Linear(8, 8)")
    assert found["confidence"] == "medium"
    assert "cannot be followed" in str(found["confidence_reasons"])


def test_images_that_a_program_enlarges_itself_make_the_confidence_medium() -> None:
    source = (
        f"{TORCH}image_size = 1024\nnet = nn.Sequential(nn.Conv2d(3, 8, 3))\n{TRAINED}"
    )
    assert needs(source)["confidence"] == "high"
    enlarged = f"{source}nn.functional.interpolate(net(x), scale_factor=2)\n"
    assert needs(enlarged)["confidence"] == "medium"


def test_options_of_vllm_split_the_weights() -> None:
    words = ["serve", "gpt2", "--tensor-parallel-size=4", "-pp", "2"]
    program = program_of_tool(["vllm", *words])
    assert program is not None
    assert "tensor_parallel_size=4, pipeline_parallel_size=2" in program
    wrong = program_of_tool(["vllm", *words[:2], "-tp", "1); f("])
    assert wrong == "from vllm import LLM\nLLM('gpt2')\n"
