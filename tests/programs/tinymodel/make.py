"""A random Llama with a tokenizer and a chat template, for servers: `python make.py
FOLDER TEXT`. It is tiny, unless `--width` and `--layers` say otherwise.

What it says is nonsense, and how it says it is real: `initializer_range` is large so
that the words vary.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{%"
    " endfor %}assistant:"
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("text")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    folder = options.folder
    bpe = ByteLevelBPETokenizer()
    bpe.train([options.text], vocab_size=1000, special_tokens=["<s>", "</s>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.width,
        intermediate_size=2 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.08,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.do_sample = False
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
