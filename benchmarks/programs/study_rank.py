"""`study_rank.py RUNTIME FOLDER MODE ROUNDS`: one rank that lets two ways of answering
the same batch take turns.

MODE: `alone` our engine against transformers' generate, `tp` ours on two ranks against
transformers' own tensor parallelism on the same two, `pp` ours on two stages with
micro-batches against the same without. Rank 0 prints one JSON
object: tokens per second of each round, `{"ours": […], "floor": […]}`. `make FOLDER`
writes the model instead.
"""

import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

BATCH = 64
PROMPT_TOKENS = 64
NEW_TOKENS = 32
VOCABULARY = 1024
LAYOUTS = {"alone": (1, 1), "tp": (2, 1), "pp": (1, 2)}


def make(folder: Path) -> None:
    """A Llama of 6 million random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def prompts() -> list[list[int]]:
    """Prompts of nearly the same length."""
    draws = random.Random(2)
    return [
        [draws.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS - number % 4)]
        for number in range(BATCH)
    ]


def ours(
    runtime: Path, folder: Path, mode: str, micro_batches: int
) -> Callable[[], Any]:
    """Answers the batch by our engine."""
    sys.path.insert(0, str(runtime))
    importlib.import_module("run_distributed_inference").load_package()
    names = ("experiment", "launch", "communicator", "prompts", "torch_engine")
    experiment, launch, communicator, prompt, torch_engine = (
        importlib.import_module(f"study_runtime.{name}") for name in names
    )
    tp_size, pp_size = LAYOUTS[mode]
    one = experiment.Experiment(
        "bench",
        folder,
        folder,
        folder,
        folder,
        tp_size=tp_size,
        pp_size=pp_size,
        micro_batches=micro_batches,
        max_new_tokens=NEW_TOKENS,
        precision="fp32",
        device="cpu",
        ignore_eos=True,
    )
    here = launch.read_launch(os.environ)
    device = communicator.initialize_distributed_environment(one, here)
    engine = torch_engine.TorchEngine(
        one,
        communicator.Communicator(launch.configure_parallel_groups(one, here), device),
    )
    engine.load()
    batch = [
        prompt.Prompt(f"p{number}", "2k", tuple(ids))
        for number, ids in enumerate(prompts())
    ]
    return lambda: engine.generate(batch)


def theirs(folder: Path, mode: str) -> Callable[[], Any]:
    """Answers it by transformers."""
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {}
    if mode == "tp":
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_size=2)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, **options
    ).eval()
    rows = prompts()
    ids = torch.tensor([[0] * (PROMPT_TOKENS - len(row)) + row for row in rows])
    mask = torch.tensor(
        [[0] * (PROMPT_TOKENS - len(row)) + [1] * len(row) for row in rows]
    )
    options = {
        "do_sample": False,
        "max_new_tokens": NEW_TOKENS,
        "min_new_tokens": NEW_TOKENS,
        "pad_token_id": 0,
    }
    return lambda: model.generate(ids, attention_mask=mask, **options)


def rate(answer: Callable[[], Any]) -> float:
    """Tokens per second."""
    began = time.perf_counter()
    answer()
    return BATCH * NEW_TOKENS / (time.perf_counter() - began)


def main() -> None:
    if sys.argv[1] == "make":
        return make(Path(sys.argv[2]))
    runtime = Path(sys.argv[1])
    folder = Path(sys.argv[2])
    mode = sys.argv[3]
    rounds = int(sys.argv[4])
    ways = {
        "ours": ours(runtime, folder, mode, 2 if mode == "pp" else 1),
        "floor": (
            ours(runtime, folder, mode, 1) if mode == "pp" else theirs(folder, mode)
        ),
    }
    for way in ways.values():
        way()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(rate(way))
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(found), flush=True)
    # Process groups of two kinds are open; nothing is gained by closing them.
    os._exit(0)


if __name__ == "__main__":
    main()
