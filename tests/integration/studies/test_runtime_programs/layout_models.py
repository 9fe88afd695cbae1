"""`layout_models.py FOLDER SEED FAMILY…`: tiny random models of families, with what
transformers answers to forty prompts in fp32 and in bf16.

Runs where PyTorch and transformers are. A model's folder gets `prompts.jsonl` and
`answers.json`: by precision and way (`alone`: one prompt after the other, `batched`: in
padded batches) the tokens of each prompt, with log-probabilities as in `greedy`. Its
weights are numbers that bf16 has, so both precisions have the same model.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import reference
import torch
from transformers import AutoModelForCausalLM

VARIANTS = ("2k", "4k")
PROMPTS = 20
LONGEST = 48
NEW_TOKENS = 16
BATCH = 20
# Larger weights make the answers of so small models depend on the last bit of a sum.
SPREAD = 0.1
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main(folder: Path, seed: int, families: list[str]) -> None:
    """Make every model, and ask it."""
    torch.set_num_threads(1)
    for name in families:
        # The same model whichever others are asked for.
        draws = random.Random(f"{seed} {name}")
        family, more = reference.NAMED[name]
        options = {**more, "initializer_range": SPREAD}
        model = reference.new_model(family, options, draws.randrange(2**32))
        for parameter in model.state_dict().values():
            parameter.copy_(parameter.bfloat16())
        place = folder / name
        model.save_pretrained(place)
        reference.make_tokenizer().save_pretrained(place)
        prompts = {
            f"{variant}/p{number + 1:02}": tokens
            for variant in VARIANTS
            for number, tokens in enumerate(
                reference.draw_prompts(draws, PROMPTS, LONGEST)
            )
        }
        write_prompts(place / "prompts.jsonl", prompts)
        answers = {
            precision: ask(place, dtype, prompts) for precision, dtype in DTYPES.items()
        }
        (place / "answers.json").write_text(json.dumps(answers))


def write_prompts(path: Path, prompts: dict[str, list[int]]) -> None:
    """The rows that the runtime reads."""
    lines: list[str] = []
    for key, tokens in prompts.items():
        variant, _, prompt_id = key.partition("/")
        row = {"prompt_id": prompt_id, "variant": variant}
        lines.append(json.dumps({**row, "prompt": reference.text_of(tokens)}))
    path.write_text("\n".join(lines) + "\n")


def ask(
    folder: Path, dtype: torch.dtype, prompts: dict[str, list[int]]
) -> dict[str, dict[str, Any]]:
    """What transformers answers in one precision, by way and prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    alone: dict[str, Any] = {}
    for key, tokens in prompts.items():
        alone[key] = reference.greedy(model, tokens, NEW_TOKENS)
    batched: dict[str, Any] = {}
    keys = list(prompts)
    for start in range(0, len(keys), BATCH):
        some = {key: prompts[key] for key in keys[start : start + BATCH]}
        batched |= in_one_batch(model, some)
    return {"alone": alone, "batched": batched}


def in_one_batch(model: Any, prompts: dict[str, list[int]]) -> dict[str, Any]:
    """Answers to prompts that are padded to one length."""
    longest = max(map(len, prompts.values()))
    ids = [[0] * (longest - len(one)) + one for one in prompts.values()]
    mask = [[0] * (longest - len(one)) + [1] * len(one) for one in prompts.values()]
    answer = model.generate(
        torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    found: dict[str, Any] = {}
    for row, key in enumerate(prompts):
        tokens = answer.sequences[row, longest:].tolist()
        count = next(
            (at + 1 for at, token in enumerate(tokens) if token in ends), len(tokens)
        )
        sure: list[list[float]] = []
        for logits in answer.logits[:count]:
            best, second = logits[row].double().log_softmax(-1).topk(2)
            sure.append([best[0].item(), second[1].item(), best[1].item()])
        found[key] = (tokens[:count], sure)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
