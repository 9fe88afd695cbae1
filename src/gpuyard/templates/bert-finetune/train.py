"""Fine-tune BERT to tell kinds of sentences apart: `python train.py`.

The size `tiny` is a new model of BERT's kind. The size `bert` loads the published
weights, or those of `--model PATH`. `--data FILE` has a label, a tab and a text on each
line; without it, sentences of praise and blame are made.
"""

import argparse
import random
import sys
from pathlib import Path

from report import missing_library, say

try:
    import torch
    from torch import Tensor
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.models.bert import BertConfig, BertForSequenceClassification

    from training import State, parse, pick_device, train
except ImportError as error:
    sys.exit(missing_library(error))

SIZES = {
    "tiny": {"steps": 150, "batch_size": 16, "lr": 1e-3, "longest": 16},
    "bert": {"steps": 3000, "batch_size": 32, "lr": 3e-5, "longest": 128},
}
HELD_BACK = 5  # one example in so many is for the test
PAD = 0
UNKNOWN = 1


def made_examples() -> list[tuple[str, str]]:
    """Labels and sentences; what counts is the last word, unless a `not` turns it."""
    chance = random.Random(1)
    things = ["film", "book", "meal", "song", "walk", "lesson"]
    words = {"praise": ["good", "great", "lovely"], "blame": ["bad", "dull", "awful"]}
    examples: list[tuple[str, str]] = []
    for _ in range(1000):
        (meant, turned) = chance.sample(list(words), 2)
        is_turned = chance.random() < 0.3
        word = chance.choice(words[turned if is_turned else meant])
        how = "was not" if is_turned else "was"
        examples.append((meant, f"the {chance.choice(things)} {how} {word}"))
    return examples


def read_examples(path: Path) -> list[tuple[str, str]]:
    """Labels and texts; ValueError."""
    examples: list[tuple[str, str]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        (label, has_text, text) = line.partition("\t")
        if not has_text:
            raise ValueError(f"{path}, line {number}: write LABEL, a tab, and a text")
        examples.append((label, text))
    return examples


class Words:
    """Turns sentences into the numbers of their words."""

    def __init__(self, texts: list[str]) -> None:
        known = sorted({word for text in texts for word in text.lower().split()})
        self._numbers = {word: number for number, word in enumerate(known, UNKNOWN + 1)}
        self.count = len(known) + UNKNOWN + 1

    def __call__(self, text: str) -> list[int]:
        return [self._numbers.get(word, UNKNOWN) for word in text.lower().split()]


class FineTuning:
    """The model, its optimiser and its examples."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = pick_device()
        examples = (
            read_examples(Path(options.data)) if options.data else made_examples()
        )
        self.labels = sorted({label for label, _ in examples})
        if len(self.labels) < 2:
            raise ValueError("the examples have one label only; two are needed")
        texts = [text for _, text in examples]
        if options.size == "tiny":
            words = Words(texts)
            shape = BertConfig(
                vocab_size=words.count,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                max_position_embeddings=options.longest,
                num_labels=len(self.labels),
            )
            model = BertForSequenceClassification(shape)
            ids = [words(text) for text in texts]
        else:
            tokenizer = AutoTokenizer.from_pretrained(options.model)
            model = AutoModelForSequenceClassification.from_pretrained(
                options.model, num_labels=len(self.labels)
            )
            ids = [tokenizer(text)["input_ids"] for text in texts]
        self.model = model.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.ids = torch.tensor([_padded(row, options.longest) for row in ids])
        found = [self.labels.index(label) for label, _ in examples]
        self.classes = torch.tensor(found)
        order = torch.randperm(
            len(examples), generator=torch.Generator().manual_seed(1)
        )
        split = len(order) // HELD_BACK
        self.tested = order[:split]
        self.learned = order[split:]

    def _answer(self, chosen: Tensor, labels: Tensor | None = None):
        ids = self.ids[chosen].to(self.device)
        return self.model(input_ids=ids, attention_mask=ids != PAD, labels=labels)

    def step(self) -> dict[str, float]:
        self.model.train()
        drawn = torch.randint(len(self.learned), (self.options.batch_size,))
        chosen = self.learned[drawn]
        loss = self._answer(chosen, self.classes[chosen].to(self.device)).loss
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {"loss": loss.item()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        correct = 0
        for chosen in self.tested.split(256):
            found = self._answer(chosen).logits.argmax(dim=1).cpu()
            correct += int((found == self.classes[chosen]).sum())
        return {"val_accuracy": correct / len(self.tested)}

    def state(self) -> State:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def _padded(ids: list[int], longest: int) -> list[int]:
    return ids[:longest] + [PAD] * (longest - len(ids))


def main() -> int:
    options = parse("Fine-tune BERT.", SIZES, data=None, model="bert-base-uncased")
    try:
        tuning = FineTuning(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    say(f"labels: {', '.join(tuning.labels)}")
    code = train(tuning, options)
    if code == 0:
        tuning.model.save_pretrained(options.out / "model")
    return code


if __name__ == "__main__":
    sys.exit(main())
