"""Programs that are made to take all memory or time, and numbers that are none."""

import json
from typing import Any

import pytest

from gpuyard.insight.needs.operators import is_small
from gpuyard.insight.needs.python_calls import deep_copy
from gpuyard.insight.needs.recommend import recommend, to_json
from gpuyard.insight.needs.sources import Sources
from tests.support.read_programs import needs

TORCH = "import torch\nfrom torch import nn\n"
LAYER = "nn.Linear(9, 9).cuda()\n"


def needs_of_cells(*cells: str) -> dict[str, Any]:
    """The recommendation for a notebook with these cells."""
    code = [{"cell_type": "code", "source": cell} for cell in cells]
    sources = Sources({"a.ipynb": json.dumps({"cells": code})}, "a.ipynb")
    return to_json(recommend(sources, []))


@pytest.mark.parametrize(
    ("begin", "double", "use"),
    [
        ("s = [1]", "s = [*s, *s]", ""),
        ("s = (1,)", "s = (*s, *s)", ""),
        ("s = t = [1]", "s = [s, s]; t = [t, t]", "s == t\nt in [s]\n[s].index(t)"),
        ("s = (1,)", "s = (s, s)", "{s: 1}\n{}[s]"),
        (
            "from omegaconf import OmegaConf\ns = {}",
            "s = {'a': s, 'b': s}",
            "OmegaConf.merge(s, s)",
        ),
    ],
)
def test_what_doubles_with_each_line_takes_no_memory(
    begin: str, double: str, use: str
) -> None:
    source = f"{TORCH}{begin}\n" + f"{double}\n" * 60 + f"{use}\n{LAYER}"
    assert needs(source)["needs"]["gpus"] == 1


def test_a_copy_ends_though_what_is_copied_is_huge() -> None:
    seen: dict[int, Any] = {}
    deep_copy([[number] for number in range(100_000)], seen)
    assert len(seen) < 30_000


def test_a_value_is_small_if_its_parts_are_few() -> None:
    assert is_small({"a": [1, (2, 3)]})
    assert not is_small(list(range(20_000)))
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    assert not is_small(deep)


@pytest.mark.parametrize("ratio", ["nan", "inf", "-1"])
def test_a_block_with_a_ratio_that_is_none_has_an_unknown_size(ratio: str) -> None:
    source = TORCH + (
        "from timm.models.vision_transformer import Block\n"
        f"Block(768, 12, float('{ratio}')).cuda()\n"
    )
    assert needs(source)["confidence"] == "low"


def test_a_transformer_of_a_file_with_an_impossible_ratio_is_read() -> None:
    config = "hidden_size: 4096\nnum_layers: 32\nnum_heads: 32\nmlp_ratio: .nan\n"
    source = TORCH + "made(load).cuda()\nloss.backward()\n"
    found = needs(source, "--config", "a.yaml", others={"a.yaml": config})
    assert found["parameters"] == 32 * 12 * 4096 * 4096


@pytest.mark.parametrize("share", ["-9", "0", "float('nan')", "7"])
def test_an_impossible_share_of_a_gpu_counts_as_the_usual_one(share: str) -> None:
    def memory(line: str) -> Any:
        source = (
            "from trl import GRPOConfig, GRPOTrainer\n"
            "args = GRPOConfig(use_vllm=True, vllm_mode='colocate',"
            f" per_device_train_batch_size=1{line})\n"
            "GRPOTrainer(model='Qwen/Qwen2-0.5B-Instruct', args=args).train()\n"
        )
        return needs(source)["needed_gb"]

    assert memory(f", vllm_gpu_memory_utilization={share}") == memory("")


def test_vllm_takes_full_precision_where_it_is_asked_for() -> None:
    source = "from vllm import LLM\nLLM('meta-llama/Llama-2-7b-hf'{})\n"
    half = needs(source.format(""))["memory_gb"]["weights"]
    full = needs(source.format(", dtype='float32'"))["memory_gb"]["weights"]
    assert full == pytest.approx(2 * half, rel=0.01)


def test_a_launcher_starts_at_least_one_program_on_one_node() -> None:
    sources = Sources({"a.py": TORCH + LAYER}, "a.py")
    launcher = ["torchrun", "--nproc-per-node=0", "--nnodes=0"]
    found = to_json(recommend(sources, [], launcher))
    assert (found["needs"]["gpus"], found["needs"]["nodes"]) == (1, 1)


def test_an_empty_name_of_a_tpu_chooses_none() -> None:
    source = TORCH + (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--tpu_name', default='')\na = p.parse_args()\n"
    )
    assert needs(source + LAYER)["needs"]["gpus"] == 1
    assert needs(source + LAYER, "--tpu_name", "mine")["needs"]["gpus"] == 0


@pytest.mark.parametrize(
    "cell",
    [
        "%%bash\nls -la /",
        "%%html\n<b>",
        "names = !ls",
        "t = %timeit -o f()",
        "!pip install torch \\\n    timm",
        "torch?",
        "?torch.nn",
        "x = (a\n != b)",
        "!yolo train model=yolo11n.pt epochs=007 batch=²",
    ],
)
def test_what_is_no_python_in_a_notebook_is_left_out(cell: str) -> None:
    found = needs_of_cells(cell, "import torch\ntorch.nn.Linear(1000, 9).cuda()")
    assert found["needs"]["gpus"] == 1
    assert found["parameters"] >= 9009


def test_commands_on_several_lines_do_not_move_the_lines_after_them() -> None:
    layer = "import torch\ntorch.nn.Linear(1000, 9).cuda()"
    places = [
        [line["line"] for line in needs_of_cells(cell, layer)["lines"]]
        for cell in ("a = 1\nb = 1", "!pip install \\\n  a", "%%bash\nls -la /")
    ]
    assert places[0] == places[1] == places[2]
