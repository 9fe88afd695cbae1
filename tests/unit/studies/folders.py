"""Folders for tests: a model whose weights are all zeros, and a study around it."""

import json
from pathlib import Path
from typing import Any

from gpuyard.studies.study import Study, load_study

# Else the commands would start a server in the home of whoever runs the tests.
NO_SERVER = {"GPUYARD_URL": "http://127.0.0.1:9"}
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 320,
    "max_position_embeddings": 8192,
}


def safetensors(size: int = 16) -> bytes:
    """A file with one tensor."""
    header = json.dumps(
        {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    ).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def make_model(folder: Path, shards: int = 1, **config: Any) -> Path:
    """A folder with a config.json and weights that look whole."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**TINY, **config}))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors())
        return folder
    names = [
        f"model-{number:05d}-of-{shards:05d}.safetensors"
        for number in range(1, shards + 1)
    ]
    for name in names:
        (folder / name).write_bytes(safetensors())
    weights = {f"w{number}": name for number, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weights})
    )
    return folder


def write_prompts(folder: Path, count: int = 20) -> None:
    """Both prompt files."""
    folder.mkdir(parents=True, exist_ok=True)
    for variant in ("2k", "4k"):
        text = "\n---\n".join(
            f"Question {number} of {variant}\nin two lines?"
            for number in range(1, count + 1)
        )
        (folder / f"prompts_{variant}.txt").write_text(text + "\n")


STRATEGIES = """
[[strategies]]
kind = "tensor_across_nodes"
nodes = 4
[[strategies]]
kind = "pipeline_across_nodes"
nodes = 4
[[strategies]]
kind = "tensor_single_node"
gpus_per_node = 4
[[strategies]]
kind = "hybrid"
gpus_per_node = 2
"""


def make_study(
    directory: Path,
    extra: str = "",
    strategies: str = STRATEGIES,
    count: int = 20,
    **config: Any,
) -> Study:
    """A study of a tiny model whose layouts fit four processes; `extra` is TOML before
    the strategies.
    """
    if not (directory / "model").exists():
        make_model(directory / "model", **config)
    write_prompts(directory / "data", count)
    head = (
        f'[model]\nname = "tiny/Tiny-8B"\npath = "model"\n[prompts]\ncount = {count}\n'
    )
    (directory / "study.toml").write_text(head + extra + strategies)
    return load_study(directory)
