"""A tiny random model for sentences, of 768 numbers: `python embedder.py FOLDER
TEXT`.
"""

import sys
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, models
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast


def main() -> None:
    folder = Path(sys.argv[1])
    text = sys.argv[2]
    words = BertWordPieceTokenizer()
    words.train([text], vocab_size=800)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words._tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    tokenizer.save_pretrained(folder / "bert")
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=768,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder / "bert")
    inner = models.Transformer(str(folder / "bert"), max_seq_length=64)
    SentenceTransformer(modules=[inner, models.Pooling(768)]).save(
        str(folder / "sentences")
    )


if __name__ == "__main__":
    main()
