"""`reference.py FOLDER SEED COUNT [NAME…]`: tiny random models under FOLDER, each with
prompts and what transformers says.

Each model's folder gets `prompts.jsonl`, `expected.json`, the ids that `generate` makes
greedily of each prompt, and `logprobs.json`. Sizes are such that 1, 2, 3 and 4 divide them. The models
are those of `NAMED`, or of these the ones that are named, and COUNT drawn from SEED.
"""

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
)

DRAWN_FAMILIES = ("llama", "mistral", "qwen2")
VOCABULARY = 96
NEW_TOKENS = 5
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
# As DeepSeek's own files have it: these numbers also scale the attention.
DEEP_YARN = YARN | {
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
    "beta_fast": 4,
    "beta_slow": 1,
}
DEEPSEEK = {
    "num_key_value_heads": 24,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 40,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
NAMED = {
    "llama": ("llama", {"rope_parameters": LLAMA3, "eos_token_id": [2, 3]}),
    "llama-biased": (
        "llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 5000.0,
                "factor": 2.0,
            },
        },
    ),
    "qwen": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 24}),
    "qwen-sliding": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 2,
            "rope_parameters": YARN,
        },
    ),
    "mistral": ("mistral", {"sliding_window": 7, "eos_token_id": 5}),
    "qwen3": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "gemma": ("gemma", {"head_dim": 16}),
    "mixtral": (
        "mixtral",
        {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 9},
    ),
    "deepseek": ("deepseek_v3", DEEPSEEK),
    "deepseek-long": (
        "deepseek_v3",
        DEEPSEEK | {"q_lora_rank": None, "rope_parameters": DEEP_YARN},
    ),
}


def drawn(draws: random.Random) -> tuple[str, dict]:
    """A random configuration."""
    family = draws.choice(DRAWN_FAMILIES)
    options = {
        "tie_word_embeddings": draws.random() < 0.5,
        "head_dim": draws.choice([4, 8, 16]),
        "num_key_value_heads": draws.choice([12, 24]),
        "num_hidden_layers": draws.randint(4, 7),
        "intermediate_size": 12 * draws.randint(2, 12),
        "hidden_size": draws.choice([48, 96, 144]),
        "eos_token_id": draws.sample(range(4, VOCABULARY), draws.randint(1, 4)),
    }
    if family == "qwen2":
        options |= {
            "use_sliding_window": draws.random() < 0.5,
            "sliding_window": draws.randint(2, 20),
            "max_window_layers": draws.randint(0, 4),
        }
        options["hidden_size"] = 24 * options.pop("head_dim")
    elif family == "mistral":
        options |= {"sliding_window": draws.choice([None, 2, 5, 11, 40])}
    else:
        options |= {
            "attention_bias": draws.random() < 0.5,
            "mlp_bias": draws.random() < 0.5,
        }
        options |= {"rope_parameters": LLAMA3} if draws.random() < 0.5 else {}
    return family, options


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A word for each id: `w17` is 17."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="w0", unk_token="w0"
    )


def new_model(family: str, options: dict, seed: int) -> torch.nn.Module:
    """A random model."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 192,
        "intermediate_size": 120,
        "num_hidden_layers": 5,
        "num_attention_heads": 24,
        "num_key_value_heads": 12,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "max_position_embeddings": 128,
    }
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **(sizes | options)), dtype=torch.float32
    ).eval()
    for name, parameter in model.state_dict().items():
        # Else a rank that leaves them out would answer as well.
        if name.endswith(("bias", "norm.weight")):
            parameter.copy_(torch.normal(parameter, 0.3))
    return model


def draw_prompts(draws: random.Random, count: int, longest: int) -> list[list[int]]:
    """Prompts of random tokens, each with 1 to `longest` of them."""
    lengths = [draws.randint(1, longest) for _ in range(count)]
    return [[draws.randrange(1, VOCABULARY) for _ in range(size)] for size in lengths]


def text_of(tokens: list[int]) -> str:
    """What the tokenizer makes these tokens of."""
    return " ".join(f"w{token}" for token in tokens)


def make(folder: Path, family: str, options: dict, draws: random.Random) -> None:
    """Make a model, prompts and the reference."""
    model = new_model(family, options, draws.randrange(2**32))
    model.save_pretrained(folder, max_shard_size=draws.choice(["10GB", "300KB"]))
    make_tokenizer().save_pretrained(folder)
    prompts = draw_prompts(draws, draws.randint(8, 11), 24)
    rows = [
        {
            "prompt_id": f"p{number + 1:02}",
            "variant": "2k",
            "prompt": text_of(tokens),
        }
        for number, tokens in enumerate(prompts)
    ]
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    answers = {f"p{i + 1:02}": greedy(model, p) for i, p in enumerate(prompts)}
    expected = {prompt_id: tokens for prompt_id, (tokens, _) in answers.items()}
    (folder / "expected.json").write_text(json.dumps(expected))
    logprobs = {prompt_id: sure for prompt_id, (_, sure) in answers.items()}
    (folder / "logprobs.json").write_text(json.dumps(logprobs))


def greedy(
    model: torch.nn.Module, prompt: list[int], count: int = NEW_TOKENS
) -> tuple[list[int], list[list[float]]]:
    """What transformers answers, and of each token its log-probability and those of
    the second: token and log-probability.
    """
    ids = torch.tensor([prompt])
    answer = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    sure: list[list[float]] = []
    for logits in answer.logits:
        best, tokens = logits[0].double().log_softmax(-1).topk(2)
        sure.append([best[0].item(), tokens[1].item(), best[1].item()])
    return answer.sequences[0, len(prompt) :].tolist(), sure


def main() -> None:
    folder = Path(sys.argv[1])
    seed = int(sys.argv[2])
    count = int(sys.argv[3])
    torch.set_num_threads(1)
    draws = random.Random(seed)
    wanted = sys.argv[4:] or NAMED
    named = {name: NAMED[name] for name in wanted}
    chosen = named | {f"random-{number}": drawn(draws) for number in range(count)}
    for name, (family, options) in chosen.items():
        make(folder / name, family, options, draws)


if __name__ == "__main__":
    main()
