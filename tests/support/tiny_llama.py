"""`tiny_llama.py FOLDER PROMPTS NEW`: a tiny random Llama in FOLDER, and what
transformers answers with it.

PROMPTS is a JSON file of texts by key; the ids of at most NEW tokens of each go to
FOLDER/expected.json. The tokenizer has one token for each byte. Runs where PyTorch and
transformers are.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS = 256
EOS = 257
PAD = 258


def make(folder: Path) -> LlamaForCausalLM:
    """The model and its tokenizer."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    words = {
        byte: number
        for number, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    words |= {"<s>": BOS, "</s>": EOS, "<pad>": PAD, "<unk>": 259}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=(
            "{% for message in messages %}{{ message['content'] }}{% endfor %}"
        ),
    )
    fast.save_pretrained(folder)
    return model


def main(folder: Path, prompts: Path, new: int) -> None:
    """Make it, and ask it."""
    model = make(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    expected: dict[str, list[int]] = {}
    for key, text in json.loads(prompts.read_text()).items():
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            answer = model.generate(ids, max_new_tokens=new, do_sample=False)
        expected[key] = [int(token) for token in answer[0, ids.shape[1] :]]
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
