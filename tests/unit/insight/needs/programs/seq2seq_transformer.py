import math

import torch
import torch.nn as nn
from torch.nn import Transformer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SRC_VOCAB_SIZE = 19214
TGT_VOCAB_SIZE = 10837
EMB_SIZE = 512
NHEAD = 8
FFN_HID_DIM = 512
BATCH_SIZE = 128


class Seq2Seq(nn.Module):
    def __init__(self, encoders, decoders, width, heads, source, target, inner=512):
        super().__init__()
        self.transformer = Transformer(
            d_model=width,
            nhead=heads,
            num_encoder_layers=encoders,
            num_decoder_layers=decoders,
            dim_feedforward=inner,
        )
        self.generator = nn.Linear(width, target)
        self.src = nn.Embedding(source, width)
        self.tgt = nn.Embedding(target, width)
        self.scale = math.sqrt(width)


transformer = Seq2Seq(
    3, 3, EMB_SIZE, NHEAD, SRC_VOCAB_SIZE, TGT_VOCAB_SIZE, FFN_HID_DIM
)
for p in transformer.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
transformer = transformer.to(DEVICE)
optimizer = torch.optim.Adam(transformer.parameters(), lr=1e-4, betas=(0.9, 0.98))
for epoch in range(1, 19):
    loss = transformer(None)
    loss.backward()
    optimizer.step()
