"""Fine-tune GPT-2 on a text: `python train.py`.

The size `tiny` is a new model of GPT-2's kind, over bytes. The size `gpt2` loads the
published weights, or those of `--model PATH`. `--data FILE` is any UTF-8 text; without
it, the text is made.
"""

import argparse
import random
import sys
from pathlib import Path

from report import missing_library, say

try:
    import torch
    from torch import Tensor
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel

    from training import State, parse, pick_device, train
except ImportError as error:
    sys.exit(missing_library(error))

SIZES = {
    "tiny": {"steps": 200, "batch_size": 8, "lr": 2e-3, "block": 64},
    "gpt2": {"steps": 2000, "batch_size": 8, "lr": 5e-5, "block": 1024},
}
HELD_BACK = 10  # one token in so many is for the validation loss
TESTED = 8
SHOWN = 80  # tokens


def made_text() -> str:
    """Sentences that one can learn: who does what, where."""
    chance = random.Random(1)
    who = ["The cat", "A dog", "My aunt", "The teacher", "One of us"]
    does = ["sees", "paints", "carries", "forgets", "repairs"]
    what = ["a red ball", "the old door", "three letters", "a song", "the map"]
    where = ["at home", "in the garden", "by the river", "every day", "alone"]
    parts = (who, does, what, where)
    lines = [" ".join(map(chance.choice, parts)) for _ in range(2000)]
    return ".\n".join(lines)


class FineTuning:
    """The model, its optimiser and its text."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = pick_device()
        text = Path(options.data).read_text() if options.data else made_text()
        if options.size == "tiny":
            self.tokenizer = None
            shape = GPT2Config(
                vocab_size=256,
                n_positions=options.block,
                n_embd=64,
                n_layer=2,
                n_head=2,
                bos_token_id=0,
                eos_token_id=0,
            )
            model = GPT2LMHeadModel(shape)
            ids = list(text.encode())
        else:
            self.tokenizer = AutoTokenizer.from_pretrained(options.model)
            model = AutoModelForCausalLM.from_pretrained(options.model)
            ids = self.tokenizer(text)["input_ids"]
        self.model = model.to(self.device)
        tokens = torch.tensor(ids)
        split = len(tokens) - len(tokens) // HELD_BACK
        self.tokens = tokens[:split]
        self.tested = tokens[split:]
        if len(self.tested) <= options.block:
            raise ValueError(f"the text has only {len(tokens)} tokens")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)

    def _batch(self, tokens: Tensor, starts: Tensor) -> Tensor:
        block = self.options.block
        rows = [tokens[start : start + block] for start in starts.tolist()]
        return torch.stack(rows).to(self.device)

    def _loss(self, batch: Tensor) -> Tensor:
        half = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            return self.model(input_ids=batch, labels=batch).loss

    def step(self) -> dict[str, float]:
        self.model.train()
        last = len(self.tokens) - self.options.block
        starts = torch.randint(last, (self.options.batch_size,))
        loss = self._loss(self._batch(self.tokens, starts))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {"loss": loss.item()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        last = len(self.tested) - self.options.block
        starts = torch.linspace(0, last - 1, TESTED).long()
        return {"val_loss": self._loss(self._batch(self.tested, starts)).item()}

    @torch.no_grad()
    def sample(self) -> str:
        """A text of the model's own."""
        self.model.eval()
        prompt = self.tokens[:8][None].to(self.device)
        ids = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=min(SHOWN, self.options.block - 8),
            do_sample=True,
            pad_token_id=0,
        )[0].tolist()
        if self.tokenizer is None:
            return bytes(ids).decode(errors="replace")
        return self.tokenizer.decode(ids)

    def state(self) -> State:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def main() -> int:
    options = parse("Fine-tune GPT-2.", SIZES, data=None, model="gpt2")
    try:
        tuning = FineTuning(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    code = train(tuning, options)
    if code == 0:
        tuning.model.save_pretrained(options.out / "model")
        say(tuning.sample())
    return code


if __name__ == "__main__":
    sys.exit(main())
