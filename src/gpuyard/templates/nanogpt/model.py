"""A GPT: a decoder-only transformer with pre-norm blocks, learned positions and one
embedding for input and output.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model; the defaults are those of GPT-2 small (124.4 million
    parameters).
    """

    vocab_size: int = 50257
    block_size: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, and {self.width} is not one of"
                f" {self.heads}"
            )


class CausalSelfAttention(nn.Module):
    """Each position looks at itself and at those before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) -> (batch, time, width)."""
        batch, time, width = x.shape
        # (batch, time, 3 * width) -> three of (batch, heads, time, width / heads)
        q, k, v = (
            self.qkv(x)
            .view(batch, time, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        dropout = self.dropout if self.training else 0.0
        y = scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each normalised on the way in and added
    to what came.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = CausalSelfAttention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.width, config.width),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) -> (batch, time, width)."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class GPT(nn.Module):
    """Predicts the next token at every position."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.block_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self._initialise()

    def _initialise(self) -> None:
        """Draw the weights as GPT-2 does: N(0, 0.02), the layers that write into the
        residual stream scaled down.
        """
        # Each block adds to the stream twice; without this its variance would grow with
        # depth.
        residual_std = 0.02 / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                into_stream = name.endswith(("attention.out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=residual_std if into_stream else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def parameter_count(self) -> int:
        """How many numbers are trained; the shared embedding counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (batch, time, vocab_size) for `tokens` (batch, time <= block_size),
        and with `targets` (batch, time) their mean cross-entropy in nats.
        """
        time = tokens.shape[1]
        if time > self.config.block_size:
            raise ValueError(
                f"{time} tokens are more than the block of {self.config.block_size}"
            )
        x = self.tokens(tokens) + self.positions(
            torch.arange(time, device=tokens.device)
        )
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, count: int, temperature: float = 1.0, top_k: int = 50
    ) -> Tensor:
        """`tokens` (batch, time) continued by `count` tokens drawn one by one from the
        `top_k` likeliest.
        """
        for _ in range(count):
            logits, _ = self(tokens[:, -self.config.block_size :])
            logits = logits[:, -1] / temperature
            likeliest, ids = logits.topk(min(top_k, logits.shape[-1]))
            choice = torch.multinomial(likeliest.softmax(dim=-1), num_samples=1)
            tokens = torch.cat([tokens, ids.gather(1, choice)], dim=1)
        return tokens
