"""How programs are followed, and what becomes of bad ones."""

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.insight.needs.config_files import composed, parsed_config
from gpuyard.insight.needs.recommend import recommend, to_json
from gpuyard.insight.needs.sources import Sources
from gpuyard.insight.needs.tables import known_model, known_vision
from gpuyard.insight.needs.values import UNKNOWN
from tests.support.read_programs import needs

TORCH = "import torch\nfrom torch import nn\n"


def test_the_line_of_a_model_says_its_weights_and_its_memory() -> None:
    found = needs(
        "import torch\n"
        "from transformers import GPT2LMHeadModel\n"
        "model = GPT2LMHeadModel.from_pretrained('gpt2-large').cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
    )
    line = next(line for line in found["lines"] if "774 M" in line["says"])
    assert line["path"] == "train.py"
    assert line["line"] == 3
    assert "GPT2LMHeadModel.from_pretrained('gpt2-large')" in line["code"]
    states = found["memory_gb"]
    assert states["weights"] + states["gradients"] + states["optimiser"] == (
        pytest.approx(12.4, abs=0.1)
    )
    assert found["tier"] == "GPU_SMALL"


def test_weights_that_two_layers_share_count_once() -> None:
    found = needs(
        TORCH + "class Net(nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        self.table = nn.Embedding(1000, width)\n"
        "        self.head = nn.Linear(width, 1000, bias=False)\n"
        "        self.head.weight = self.table.weight\n"
        "net = Net(64).cuda()\n"
    )
    assert found["parameters"] == 64_000


def test_the_command_line_beats_the_default() -> None:
    source = (
        TORCH + "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--width', type=int, default=10)\n"
        "args = parser.parse_args()\n"
        "net = nn.Linear(args.width, 1, bias=False).cuda()\n"
    )
    assert needs(source)["parameters"] == 10
    assert needs(source, "--width", "20")["parameters"] == 20
    assert needs(source, "--width=30")["parameters"] == 30


def test_click_and_dataclasses_give_their_defaults() -> None:
    clicked = (
        TORCH + "import click\n"
        "@click.command()\n"
        "@click.option('--width', default=12)\n"
        "def main(width):\n"
        "    nn.Linear(width, 1, bias=False).cuda()\n"
        "main()\n"
    )
    assert needs(clicked)["parameters"] == 12
    assert needs(clicked, "--width", "5")["parameters"] == 5
    parsed = (
        TORCH + "import tyro\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Args:\n"
        "    width: int = 7\n"
        "args = tyro.cli(Args)\n"
        "nn.Linear(args.width, 1, bias=False).cuda()\n"
    )
    assert needs(parsed)["parameters"] == 7
    assert needs(parsed, "--width", "9")["parameters"] == 9


def test_modules_of_the_folder_are_followed() -> None:
    others = {
        "lib/__init__.py": "from .net import Net\n",
        "lib/net.py": TORCH + "def Net(width):\n    return nn.Linear(width, 2)\n",
    }
    found = needs("from lib import Net\nNet(9).cuda()\n", others=others)
    assert found["parameters"] == 20


def test_a_frozen_model_has_no_gradients() -> None:
    found = needs(
        TORCH + "from torchvision import models\n"
        "net = models.resnet18()\n"
        "for p in net.parameters():\n"
        "    p.requires_grad = False\n"
        "net.fc = nn.Linear(net.fc.in_features, 10)\n"
        "net.cuda()\n"
        "torch.optim.Adam(net.fc.parameters())\n"
    )
    assert found["trainable_parameters"] == 5130
    assert found["parameters"] == pytest.approx(11.18e6, rel=0.01)


def test_a_model_that_is_not_in_the_table_is_not_known() -> None:
    found = needs(
        "from transformers import AutoModel, Trainer\n"
        "model = AutoModel.from_pretrained('someone/secret')\n"
        "Trainer(model=model).train()\n"
    )
    assert found["parameters"] is None
    assert found["confidence"] == "low"
    assert any("someone/secret" in text for text in found["unknown"])
    assert found["needs"] == {"gpus": 1, "nodes": 1, "gpu_memory_gb": None}


def test_the_name_of_a_model_says_its_size() -> None:
    published = known_model("someone/new-model-3b-chat")
    assert published is not None
    assert published.parameters == 3_000_000_000
    assert not published.certain
    derived = known_model("unsloth/Llama-3.2-1B-Instruct-bnb-4bit")
    assert derived is not None
    assert derived.parameters == 1_235_800_000
    assert known_model("someone/secret") is None


def test_the_table_of_vision_models_has_their_weights() -> None:
    resnet = known_vision("resnet50")
    assert resnet is not None
    assert resnet.parameters == 25_557_032
    assert resnet.head_inputs == 2048


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def (:\n", "not valid Python: line 1"),
        ("print 'hello'\n", "Python 2"),
        ("x = (" + "\n" * 200_000, "not valid Python"),
        ("x = 1\0\n", "not text"),
        ("x = " + "(" * 5000 + ")" * 5000, "not valid Python|nested"),
        ("#" * 2_000_001, "longer than"),
    ],
)
def test_a_bad_program_gets_one_clear_error(source: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        needs(source)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "no JSON"),
        ("{}", "without cells"),
        ('{"cells": []}', "without code"),
        ('{"cells": [{"cell_type": "code", "source": [" "]}]}', "without code"),
    ],
)
def test_a_bad_notebook_gets_one_clear_error(text: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        recommend(Sources({"a.ipynb": text}, "a.ipynb"), [])


@pytest.mark.parametrize(
    "source",
    [
        "def f(n):\n    return f(n + 1)\nf(0)\n",
        "x = 10 ** 10 ** 10\ny = 'a' * 10 ** 12\nz = [0] * 10 ** 9\n",
        "while True:\n    x = 1\n",
        "import math\nx = 2**60\n" + "x = math.prod([x] * 4000)\n" * 4,
        "\n" * 300_000 + "x = 1\n",
        "for a in range(10**9):\n    for b in range(10**9):\n        c = a\n",
        "class A:\n    def __init__(self):\n        self.a = A()\nA()\n",
        "a = []\na.append(a)\nimport torch\ntorch.nn.Sequential(*a).cuda()\n",
        "\n".join(f"def f{n}(): return f{n + 1}() + f{n + 1}()" for n in range(200))
        + "\ndef f200(): return 1\nf0()\n",
    ],
)
def test_a_program_without_end_is_followed_for_a_while(source: str) -> None:
    assert needs(source)["tier"] is not None


def test_a_configuration_that_stands_for_billions_is_not_known_whole() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    tens = [", ".join([f"*a{n - 1}"] * 10) for n in range(1, 20)]
    lines += [f"a{n}: &a{n} [{ten}]" for n, ten in enumerate(tens, 1)]
    found = parsed_config("\n".join(lines))
    assert found is not UNKNOWN
    assert parsed_config("a: &a [*a]") is not None
    assert parsed_config("{" * 40_000) is UNKNOWN


@pytest.mark.parametrize(
    ("launcher", "gpus", "nodes"),
    [
        ("torchrun --nnodes=2 --nproc-per-node 8", 8, 2),
        ("accelerate launch --multi_gpu --num_processes 4", 4, 1),
        ("accelerate launch --num_machines 2 --num_processes=8", 4, 2),
        ("deepspeed --num_gpus=3", 3, 1),
        ("deepspeed --num_nodes 2 --num_gpus 4", 4, 2),
    ],
)
def test_a_launcher_says_how_many_gpus(launcher: str, gpus: int, nodes: int) -> None:
    sources = Sources({"train.py": TORCH + "nn.Linear(1, 1).cuda()\n"}, "train.py")
    found = to_json(recommend(sources, [], launcher.split()))
    assert (found["needs"]["gpus"], found["needs"].get("nodes", 1)) == (gpus, nodes)


def test_the_configuration_of_accelerate_says_how_many_gpus() -> None:
    text = "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\n"
    found = needs(TORCH + "nn.Linear(1, 1).cuda()\n", others={"accelerate.yaml": text})
    assert (found["needs"]["gpus"], found["needs"]["nodes"]) == (4, 2)


def test_a_script_beside_the_program_says_how_many_gpus() -> None:
    others = {"run.sh": "#!/bin/sh\ntorchrun --nproc_per_node=3 train.py\n"}
    found = needs(TORCH + "nn.Linear(1, 1).cuda()\n", others=others)
    assert found["needs"]["gpus"] == 3


def test_merges_of_many_aliases_say_nothing() -> None:
    text = "a0: &a0 {x: 1}\n" + "".join(
        f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 900)}]\n"
        for n in (1, 2, 3, 4)
    )
    assert parsed_config(text) is UNKNOWN


def test_a_configuration_that_names_itself_again_and_again_ends() -> None:
    def many(group: str) -> str:
        return "defaults:\n" + f"- {group}: c\n" * 60

    texts = {
        f"{group}/c.yaml": many(after) for group, after in ("ab", "bc", "cd", "da")
    }
    assert composed({"c.yaml": many("a"), **texts}, "", "c", []) is not UNKNOWN
    words = "a: [" + ", ".join(["'${b}'"] * 900) + "]\n"
    words += "b: [" + ", ".join(["'${c}'"] * 900) + "]\n"
    words += "c: [" + ", ".join(["1"] * 900) + "]\n"
    found = composed({"c.yaml": words}, "", "c", [])
    assert isinstance(found, dict)
    assert len(found["a"]) == 900


@pytest.mark.parametrize(
    "step", ["f'{x}{x}{x}'", "os.path.join(x, x, x)", "x.replace('a', 'aaaa')"]
)
def test_a_text_that_grows_with_each_line_is_followed_for_a_while(step: str) -> None:
    """A few lines would fill the memory of the server."""
    lines = "import os, torch\nx = 'aaa'\n" + f"x = {step}\n" * 60
    found = needs(lines + "net = torch.nn.Linear(len(x), 10).cuda()\n")
    assert found["parameters"] is None


@pytest.mark.parametrize(
    "lines",
    [
        "d = {}\n" + "".join(f"d = {{**d, 'k{n}': d}}\n" for n in range(300)),
        "class A0: pass\nclass A1(A0): pass\n"
        + "".join(f"class A{n}(A{n - 1}, A{n - 2}): pass\n" for n in range(2, 60))
        + "A59().x\n",
    ],
    ids=["tables", "bases"],
)
def test_what_is_reached_by_many_ways_is_followed_for_a_while(lines: str) -> None:
    assert needs(TORCH + lines + "net = nn.Linear(9, 10).cuda()\n")["parameters"] == 100


def test_a_long_file_is_not_read_again_and_again() -> None:
    reads = "c = yaml.safe_load(open('c.yaml'))\n" * 3000
    others = {"c.yaml": "b: x\n" * 5000}
    needs(f"import yaml\n{TORCH}{reads}nn.Linear(9, 10).cuda()\n", others=others)
