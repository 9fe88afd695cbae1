"""Train a GPT on a text: `python train.py`, or `python train.py --help`.

SIGUSR1 asks for a checkpoint after the step at hand; SIGTERM and Ctrl-C ask for one and
then for the end.
"""

import hashlib
import math
import random
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

import checkpoint
from batches import Batches
from data import Tokenizer, cache_folder, load_text, make_tokenizer, restore_tokenizer
from log import Log
from model import GPT, GPTConfig
from options import SHAPES, Options, parse
from report import say
from signals import Requests

HELD_BACK = 10  # one token in so many is for the validation loss
EVAL_BATCHES = 20
SAMPLE_TOKENS = 200
GPT2_VOCAB_SIZE = 50257
BETAS = 0.9, 0.95
WEIGHT_DECAY = 0.1
GRADIENT_NORM = 1.0


class Trainer:
    """A model, its optimiser and its text: all that a step changes, and all that a
    checkpoint keeps.
    """

    def __init__(
        self,
        options: Options,
        config: GPTConfig,
        tokenizer: Tokenizer,
        text: str,
        device: torch.device,
    ) -> None:
        """ValueError where the text is too short, or has characters that the tokenizer
        does not know.
        """
        self.options = options
        self.tokenizer = tokenizer
        self.device = device
        self.text_sha256 = hashlib.sha256(text.encode()).hexdigest()
        tokens = torch.tensor(tokenizer.encode(text), device=device)
        self.train_tokens, self.val_tokens = split(tokens, config.block_size)
        self.batches = Batches(
            self.train_tokens, config.block_size, options.batch_size, options.seed
        )
        self.model = GPT(config).to(device)
        self.optimizer = make_optimizer(self.model, options.lr)
        self.half = device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.half)
        self.step = 0
        self.loss = math.nan  # of the last step, the mean over its batches
        self.lr = options.lr
        self.best_val_loss = math.inf

    def train_step(self) -> None:
        """One step of the optimiser, on the gradients of `accumulate` batches;
        FloatingPointError when it diverges.
        """
        self.lr = self.options.learning_rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        total = torch.zeros((), device=self.device)
        for _ in range(self.options.accumulate):
            loss = self._loss(self.batches) / self.options.accumulate
            self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = total.item()
        self.step += 1
        if not math.isfinite(self.loss):
            raise FloatingPointError(
                f"the loss is {self.loss} at step {self.step}: try a lower --lr"
            )

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Mean losses on the text that is trained on and on the rest, over the same
        batches every time.
        """
        self.model.eval()
        means: list[float] = []
        for tokens in (self.train_tokens, self.val_tokens):
            batches = Batches(
                tokens, self.model.config.block_size, self.options.batch_size, seed=0
            )
            means.append(
                sum(self._loss(batches).item() for _ in range(EVAL_BATCHES))
                / EVAL_BATCHES
            )
        self.model.train()
        self.best_val_loss = min(self.best_val_loss, means[1])
        return means[0], means[1]

    def _loss(self, batches: Batches) -> Tensor:
        inputs, targets = batches.draw()
        # A T4 has tensor cores for float16 but not for bfloat16, hence also the scaler.
        with torch.autocast(self.device.type, dtype=torch.float16, enabled=self.half):
            _, loss = self.model(inputs, targets)
        return loss

    def sample(self) -> str:
        """A text of the model's own, begun with the first token of the text it learned
        from.
        """
        self.model.eval()
        ids = self.model.generate(self.train_tokens[:1].unsqueeze(0), SAMPLE_TOKENS)[
            0
        ].tolist()
        # The GPT-2 size has 50257 tokens also where the tokenizer has fewer.
        return self.tokenizer.decode([i for i in ids if i < self.tokenizer.vocab_size])

    def state(self) -> checkpoint.State:
        """All of it, as plain values and tensors; the learning rate follows from the
        step.
        """
        return {
            "step": self.step,
            "loss": self.loss,
            "best_val_loss": self.best_val_loss,
            "config": asdict(self.model.config),
            "tokenizer": self.tokenizer.state(),
            "text_sha256": self.text_sha256,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "batches": self.batches.state(),
            "random": checkpoint.random_state(),
        }

    def restore(self, state: checkpoint.State) -> None:
        """Go back to `state`; ValueError where its model has another shape."""
        there = state["config"]
        here = asdict(self.model.config)
        if there != here:
            differing = (
                f"{name} {there[name]} there, {here[name]} here"
                for name in here
                if there[name] != here[name]
            )
            raise ValueError(
                f"the checkpoint's model has another shape: {', '.join(differing)}"
            )
        if state["text_sha256"] != self.text_sha256:
            say("note: the checkpoint was trained on another text than this one")
        self.step = state["step"]
        self.loss = state["loss"]
        self.best_val_loss = state["best_val_loss"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty when the checkpoint was made on a CPU
            self.scaler.load_state_dict(state["scaler"])
        self.batches.restore(state["batches"])
        checkpoint.restore_random(state["random"])


def split(tokens: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """The first nine tenths to train on, the last to measure by; ValueError where a
    block does not fit in that.
    """
    held_back = len(tokens) // HELD_BACK
    if held_back <= block_size:
        least = HELD_BACK * (block_size + 1)
        raise ValueError(
            f"the text has {len(tokens)} tokens; blocks of {block_size} need at least"
            f" {least}"
        )
    return tokens[:-held_back], tokens[-held_back:]


def make_optimizer(model: GPT, lr: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and embeddings, but neither biases nor the gains of
    norms.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS)


def prepare(options: Options) -> Trainer:
    """A trainer at its first step, or where the checkpoint left it; ValueError where
    the options do not go together.
    """
    device = pick_device(options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    state = checkpoint.load(options.resume) if options.resume else None
    text, source = load_text(options.data, cache_folder() / "datasets")
    say(f"text: {source}, {len(text)} characters")
    tokenizer = (
        restore_tokenizer(state["tokenizer"])
        if state
        else make_tokenizer(options.tokenizer, text)
    )
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    trainer = Trainer(options, make_config(options, tokenizer), tokenizer, text, device)
    say(f"number of parameters: {trainer.model.parameter_count() / 1e6:.2f}M")
    if state:
        trainer.restore(state)
        say(f"resuming from {options.resume} at step {trainer.step}")
    return trainer


def pick_device(name: str) -> torch.device:
    """The device called `name`; `auto` is a GPU where PyTorch finds one.

    ValueError for a GPU that is not there.
    """
    found = torch.cuda.is_available()
    if name == "cuda" and not found:
        raise ValueError("--device cuda: PyTorch finds no GPU here")
    return torch.device("cuda" if found and name != "cpu" else "cpu")


def make_config(options: Options, tokenizer: Tokenizer) -> GPTConfig:
    """The shape that the options ask for.

    The GPT-2 size has GPT-2's vocabulary also where the tokenizer has fewer.
    """
    vocab_size = (
        max(tokenizer.vocab_size, GPT2_VOCAB_SIZE)
        if options.size == "gpt2"
        else tokenizer.vocab_size
    )
    return GPTConfig(
        vocab_size, options.block_size, dropout=options.dropout, **SHAPES[options.size]
    )


def train(trainer: Trainer, log: Log, requests: Requests) -> Path | None:
    """Train to the last step or until a signal stops it; the checkpoint written last,
    if any was.
    """
    options = trainer.options
    tokens = options.batch_size * options.block_size * options.accumulate
    saved: Path | None = None
    if trainer.step == 0:
        log.evaluation(0, *trainer.evaluate())
    while trainer.step < options.steps:
        started = time.perf_counter()
        trainer.train_step()
        log.step(
            trainer.step,
            trainer.loss,
            trainer.lr,
            tokens,
            time.perf_counter() - started,
        )
        last = trainer.step == options.steps
        if last or trainer.step % options.eval_every == 0:
            log.evaluation(trainer.step, *trainer.evaluate())
        # Read once: a signal that comes from here on is for the next step.
        stop = requests.stop
        if last or stop or requests.save or trainer.step % options.save_every == 0:
            requests.save = False
            saved = checkpoint.save(trainer.state(), options.out, options.keep)
            # Said when it is there, so that whoever reads the line finds the file.
            say(f"saving checkpoint to {saved}")
        if stop:
            break
    return saved


def main() -> int:
    """Train as the command line asks; the exit code.

    0 at the end, 1 when training diverges, 2 for what cannot be done, 128 and the
    number of the signal that stopped it.
    """
    requests = Requests()
    options = parse()
    try:
        trainer = prepare(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    log = Log(options, trainer.step)
    try:
        saved = train(trainer, log, requests)
    except FloatingPointError as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 1
    finally:
        log.close()
    if trainer.step < options.steps:
        say(
            f"stopped by {signal.Signals(requests.stop).name} after step {trainer.step}"
        )
        return 128 + requests.stop
    say(
        f"done: steps {trainer.step}, final loss {trainer.loss:.2f}, checkpoint"
        f" {saved or options.resume}"
    )
    say(trainer.sample())
    return 0


if __name__ == "__main__":
    sys.exit(main())
