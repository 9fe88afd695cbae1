"""A tiny random Whisper: `python whisper.py FOLDER TEXT`.

What it hears is nonsense, and how it hears it is real.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|transcribe|>",
    "<|notimestamps|>",
]


def main() -> None:
    folder = Path(sys.argv[1])
    text = sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    bpe = ByteLevelBPETokenizer()
    bpe.train([text], vocab_size=600, special_tokens=SPECIAL)
    bpe.save_model(str(folder))
    tokenizer = WhisperTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    end, start, _, plain = (tokenizer.convert_tokens_to_ids(word) for word in SPECIAL)
    WhisperProcessor(
        WhisperFeatureExtractor(feature_size=80), tokenizer
    ).save_pretrained(folder)
    torch.manual_seed(1)
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=80,
        init_std=0.5,
        decoder_start_token_id=start,
        eos_token_id=end,
        pad_token_id=end,
        bos_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        max_target_positions=64,
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config.max_length = 32
    model.generation_config.no_timestamps_token_id = plain
    model.save_pretrained(folder)
    (folder / "made.json").write_text(json.dumps({"vocabulary": len(tokenizer)}))


if __name__ == "__main__":
    main()
