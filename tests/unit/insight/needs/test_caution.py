"""What a program leaves open is not taken for small, nor counted twice."""

import json

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.insight.needs.recommend import recommend, to_json
from gpuyard.insight.needs.sources import Sources
from tests.support.read_programs import needs

TORCH = "import torch\nfrom torch import nn\n"
CONFIG = (
    "from dataclasses import dataclass\n"
    "@dataclass\nclass Sizes:\n    width: int = 8\n    words: int = 10\n"
    "class Net(nn.Module):\n"
    "    def __init__(self, sizes):\n        super().__init__()\n"
    "        self.words = nn.Embedding(sizes.words, sizes.width)\n"
    "        self.head = nn.Linear(sizes.width, sizes.words)\n"
)


@pytest.mark.parametrize(
    ("given", "is_known"),
    [("Sizes()", True), ("Sizes(**load())", False), ("Sizes(**{'width': 9})", True)],
)
def test_defaults_do_not_count_where_unknown_options_replace_them(
    given: str, is_known: bool
) -> None:
    source = TORCH + CONFIG + f"from mine import load\nNet({given}).cuda()\n"
    found = needs(source)
    assert (found["parameters"] is not None) is is_known
    assert (found["confidence"] == "low") is not is_known


def test_a_model_of_mostly_unknown_layers_is_not_known() -> None:
    source = TORCH + (
        "from mine import width\nw = width()\n"
        "class Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = nn.Embedding(w, w)\n        self.b = nn.Linear(w, w)\n"
        "        self.c = nn.Linear(8, 8)\n"
        "Net().cuda()\n"
    )
    assert needs(source)["confidence"] == "low"


def test_layers_of_a_library_that_no_rule_knows_are_missed() -> None:
    source = TORCH + (
        "from rare import Mixer\n"
        "class Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layers = nn.ModuleList([Mixer(512) for _ in range(9)])\n"
        "        self.head = nn.Linear(512, 10)\n"
        "Net().cuda()\n"
    )
    assert needs(source)["confidence"] == "low"
    known = source.replace("from rare import Mixer", "from timm.layers import Mlp")
    found = needs(known.replace("Mixer(512)", "Mlp(512, 2048)"))
    layers = 9 * (2 * 512 * 2048 + 2048 + 512)
    assert found["parameters"] == layers + 512 * 10 + 10


def test_a_model_after_the_training_takes_the_place_of_the_one_before() -> None:
    once = TORCH + (
        "net = nn.Linear(9, 10).cuda()\n"
        "optimizer = torch.optim.SGD(net.parameters())\n"
        "for step in range(3):\n    optimizer.step()\n"
    )
    assert needs(once + "net = nn.Linear(9, 10)\n")["parameters"] == 100
    assert needs(once + "other = nn.Linear(9, 10)\n")["parameters"] == 200
    assert needs(once + "net = nn.Linear(9, 20)\n")["parameters"] == 200
    before = TORCH + "net = nn.Linear(9, 10).cuda()\nnet = nn.Linear(9, 10).cuda()\n"
    assert needs(before)["parameters"] == 200


def test_a_batch_of_all_gpus_together_is_not_that_of_one() -> None:
    source = TORCH + (
        "total_batch_size = 524288\nB = 4\nT = 64\n"
        "net = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 100)).cuda()\n"
        "torch.optim.Adam(net.parameters())\n"
    )
    said = [line["says"] for line in needs(source)["lines"]]
    assert any(text.startswith("a batch of 4") for text in said)
    assert any(text.startswith("sequences of 64") for text in said)


def test_a_batch_that_no_gpu_can_hold_is_doubted() -> None:
    source = TORCH + (
        "batch_size = 10**9\nseq_len = 1000\n"
        "net = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100)).cuda()\n"
        "torch.optim.Adam(net.parameters())\n"
    )
    found = needs(source)
    assert found["confidence"] == "low"
    assert "no GPU could hold" in found["confidence_reasons"][0]


def test_patches_of_an_image_count_as_tokens() -> None:
    source = TORCH + (
        "class Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.patch = nn.Conv2d(3, 192, kernel_size=16, stride=16)\n"
        "        self.norm = nn.LayerNorm(192)\n"
        "        self.layers = nn.ModuleList([nn.Linear(192, 192) for _ in range(8)])\n"
        "net = Net().cuda()\nbatch_size = 1000\n"
        "torch.optim.Adam(net.parameters())\n"
    )
    found = needs(source)
    tokens = 1000 * 196
    least = tokens * 8 * 192 * 4 / 1e9
    assert least < found["memory_gb"]["activations"] < 4 * least


def test_optuna_may_try_the_largest_size() -> None:
    source = TORCH + (
        "def objective(trial):\n"
        "    width = trial.suggest_int('width', 4, 9)\n"
        "    outputs = trial.suggest_categorical('outputs', [5, 10])\n"
        "    nn.Linear(width, outputs).cuda()\n"
        "import optuna\noptuna.create_study().optimize(objective)\n"
    )
    assert needs(source)["parameters"] == 100


def test_a_learner_of_fastai_has_its_published_model() -> None:
    source = (
        "from fastai.vision.all import *\n"
        "data = ImageDataLoaders.from_folder('images', item_tfms=Resize(192))\n"
        "learn = vision_learner(data, resnet18)\nlearn.fine_tune(3)\n"
    )
    found = needs(source)
    assert found["parameters"] == pytest.approx(11.7e6, rel=0.05)
    assert found["needs"]["gpus"] == 1


def test_training_and_generation_on_one_gpu_share_it() -> None:
    source = (
        "from trl import GRPOConfig, GRPOTrainer\n"
        "args = GRPOConfig(use_vllm=True, vllm_mode='{}')\n"
        "GRPOTrainer(model='Qwen/Qwen2-0.5B', args=args).train()\n"
    )
    alone = needs(source.format("server"))["needed_gb"]
    beside = needs(source.format("colocate"))["needed_gb"]
    assert beside == pytest.approx(alone / 0.7, rel=0.01)


def test_pairs_of_texts_count_twice() -> None:
    source = (
        "from transformers import AutoModelForCausalLM\n"
        "from trl import DPOTrainer, SFTTrainer\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2')\n"
        "{}Trainer(model=model).train()\n"
    )
    one = needs(source.format("SFT"))["memory_gb"]["activations"]
    two = needs(source.format("DPO"))["memory_gb"]["activations"]
    assert two == pytest.approx(2 * one, rel=0.02)


def test_a_cell_that_is_no_python_is_left_out() -> None:
    """As in the notebooks of courses, whose readers complete it."""
    cells = ["import torch\n", "model =\n", "torch.nn.Linear(9, 10).cuda()\n"]
    code = [{"cell_type": "code", "source": [cell]} for cell in cells]
    texts = {"a.ipynb": json.dumps({"cells": code})}
    found = to_json(recommend(Sources(texts, "a.ipynb"), []))
    assert found["parameters"] == 100
    assert next(line["line"] for line in found["lines"]) == 5
    broken = {"a.ipynb": json.dumps({"cells": code[1:2]})}
    with pytest.raises(InvalidInputError, match="not valid Python"):
        recommend(Sources(broken, "a.ipynb"), [])


def test_every_option_of_click_counts() -> None:
    source = TORCH + (
        "import click\n"
        "@click.command()\n"
        "@click.option('--inputs', type=int, default=1)\n"
        "@click.option('--outputs', type=int, default=10)\n"
        "def main(inputs, outputs):\n    nn.Linear(inputs, outputs).cuda()\n"
        "main()\n"
    )
    assert needs(source, "--inputs", "9")["parameters"] == 100
