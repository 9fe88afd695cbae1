"""What configuration files, launchers and options say beside the program."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpuyard.insight.needs.recommend import recommend, to_json
from gpuyard.insight.needs.sources import Sources
from tests.support.read_programs import needs

TORCH = "import torch\nfrom torch import nn\n"
# A program whose model nobody can find.
OPAQUE = (
    "import torch\nfrom mine import start\nstart().cuda()\nloss.backward()\n"
    "torch.optim.Adam([])\n"
)
TRAINER = (
    "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
    "model = AutoModelForCausalLM.from_pretrained('gpt2', torch_dtype='bfloat16')\n"
    "Trainer(model, TrainingArguments('out')).train()\n"
)


def launched(source: str, launcher: str, others: Mapping[str, str]) -> dict[str, Any]:
    """The recommendation for a program behind the words of a launcher."""
    texts = {**others, "train.py": source}
    sources = Sources(texts, "train.py")
    return to_json(recommend(sources, [], launcher.split()))


def test_the_file_of_a_launcher_says_the_gpus_and_what_they_share() -> None:
    config = (
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n"
        "num_machines: 2\nnum_processes: 16\nmixed_precision: bf16\n"
    )
    words = "accelerate launch --config_file configs/z.yaml"
    found = launched(TRAINER, words, {"configs/z.yaml": config})
    assert found["needs"]["gpus"] == 8
    assert found["needs"]["nodes"] == 2
    memory = found["memory_gb"]
    # ZeRO keeps 12 bytes for each of 124 M weights in half precision.
    assert memory["optimiser"] == pytest.approx(12 * 0.1244 / 16, abs=0.02)
    assert memory["weights"] == pytest.approx(2 * 0.1244 / 16, abs=0.02)
    more = launched(TRAINER, f"{words} --num_processes=1", {"configs/z.yaml": config})
    assert more["needs"]["gpus"] == 1


@pytest.mark.parametrize(
    ("config", "expected"),
    [("distributed_type: FSDP\nnum_processes: 4\n", 4), ("- 1\n", 1), ("a: [\n", 1)],
    ids=["fsdp", "a list", "not YAML"],
)
def test_a_launcher_needs_no_good_file(config: str, expected: int) -> None:
    words = "accelerate launch --config_file=c.yaml"
    found = launched(TRAINER, words, {"c.yaml": config})
    assert found["needs"]["gpus"] == expected
    is_shared = any("FSDP" in line["says"] for line in found["lines"])
    assert is_shared is (expected == 4)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--gpus", "4"], 4),
        (["--num-gpus=2"], 2),
        (["--gpus", "0,3"], 2),
        (["--gpus", "1"], 1),
        (["--gpu", "3"], 1),
        (["--gpus", "99999"], 1),
    ],
)
def test_an_option_of_the_program_says_how_many_gpus(
    words: list[str], expected: int
) -> None:
    found = needs(TORCH + "nn.Linear(9, 10).cuda()\n", *words)
    assert found["needs"]["gpus"] == expected


def test_composer_says_how_many_gpus() -> None:
    found = launched(TORCH + "nn.Linear(9, 10).cuda()\n", "composer -n 8", {})
    assert found["needs"]["gpus"] == 8


def test_hydra_takes_over_the_files_of_a_group_from_one_another() -> None:
    files = {
        "conf/config.yaml": "defaults:\n  - _self_\n  - net: wide\n",
        "conf/net/base.yaml": "inputs: 9\noutputs: 5\n",
        "conf/net/wide.yaml": "defaults:\n  - base\noutputs: 10\n",
    }
    source = TORCH + (
        "import hydra\n"
        "@hydra.main(config_path='conf', config_name='config')\n"
        "def main(config):\n"
        "    nn.Linear(config.net.inputs, config.net.outputs).cuda()\n"
        "main()\n"
    )
    assert needs(source, others=files)["parameters"] == 100


def test_yacs_takes_over_a_file_and_that_on_which_it_is_based() -> None:
    files = {
        "configs/base.yaml": "NET: {INPUTS: 9, OUTPUTS: 5}\n",
        "configs/net.yaml": "_BASE_: base.yaml\nNET: {OUTPUTS: 10}\n",
    }
    source = TORCH + (
        "from yacs.config import CfgNode\n"
        "config = CfgNode()\n"
        "config.NET = CfgNode()\n"
        "config.merge_from_file('configs/net.yaml')\n"
        "config.merge_from_list(['NET.BIAS', 'True'])\n"
        "nn.Linear(config.NET.INPUTS, config.NET.OUTPUTS).cuda()\n"
    )
    assert needs(source, others=files)["parameters"] == 100


def test_a_configuration_of_a_library_is_read_from_its_file() -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    source = (
        "from transformers import BertConfig, BertModel\n"
        "BertModel(BertConfig.from_json_file('bert.json')).cuda()\n"
    )
    small = needs(source, others={"bert.json": json.dumps(config)})
    assert small["parameters"] < 1_000_000
    unknown = needs(source)
    assert unknown["parameters"] is None or unknown["confidence"] != "high"


@pytest.mark.parametrize(
    "words",
    [
        ["--model.name_or_path", "x", "--model.model_name_or_path", "gpt2"],
        ["--model", "hf", "--model_args", "pretrained=gpt2,dtype=auto"],
    ],
    ids=["a dotted option", "pairs"],
)
def test_an_option_names_the_model_of_a_program_that_cannot_be_followed(
    words: list[str],
) -> None:
    found = needs(OPAQUE, *words)
    assert found["parameters"] == pytest.approx(124.4e6, rel=0.01)
    assert found["confidence"] == "medium"


def test_a_program_that_only_loads_its_model_has_no_optimiser() -> None:
    source = "import torch\nfrom mine import build\nbuild().cuda()\n"
    found = needs(source, "--model_name_or_path", "gpt2")
    assert found["memory_gb"]["optimiser"] == 0


def test_sizes_in_a_file_say_how_large_a_transformer_is() -> None:
    config = (
        "length: 64\nmodel:\n  d_model: 128\n  n_heads: 4\n  n_layers: 3\n"
        "  vocab_size: 1000\n  weight_tying: true\n  max_seq_len: ${length}\n"
    )
    found = needs(OPAQUE, "net.yaml", others={"net.yaml": config})
    blocks = 3 * 12 * 128**2
    assert found["parameters"] == pytest.approx(blocks + (1000 + 64) * 128, rel=0.01)
    assert found["confidence"] == "medium"


def test_sizes_that_no_model_has_are_not_believed() -> None:
    words = ["--d_model", "9" * 15, "--n_layers", "9" * 9, "--n_heads", "1"]
    found = needs(OPAQUE, *words)
    assert (found["parameters"], found["needed_gb"]) == (None, None)
    assert found["confidence"] == "low"


def test_deepspeed_may_have_its_table_in_a_file() -> None:
    table = json.dumps({"zero_optimization": {"stage": 2}})
    source = TRAINER.replace("'out'", "'out', deepspeed='ds.json'")
    found = needs(source, "--gpus", "2", others={"ds.json": table})
    assert any("ZeRO 2" in line["says"] for line in found["lines"])


@pytest.mark.parametrize("words", [["--use_tpu=True"], ["--tpu_name", "node-1"]])
def test_a_program_on_a_tpu_needs_no_gpu(words: list[str]) -> None:
    source = "import tensorflow as tf\ntf.estimator.Estimator(model)\n"
    assert needs(source)["needs"]["gpus"] == 1
    found = needs(source, *words)
    assert found["needs"]["gpus"] == 0
    assert "TPU" in found["confidence_reasons"][0]
