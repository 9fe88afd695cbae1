"""Trains the bigram model on its own source and prints what nanoGPT prints.

It knows nothing of gpuyard.
"""

import json
import random
import time
from itertools import pairwise
from pathlib import Path

import config

from model import Bigram

text = Path("model.py").read_text()
pairs = list(pairwise(text))
cut = len(pairs) * 9 // 10
model = Bigram(sorted(set(text)))
dice = random.Random(1337)
print(f"number of parameters: {model.parameters() / 1e6:.2f}M")
for iteration in range(config.max_iters + 1):
    began = time.perf_counter()
    if iteration % config.eval_interval == 0:
        losses = model.loss(pairs[:cut]), model.loss(pairs[cut:])
        print("step {}: train loss {:.4f}, val loss {:.4f}".format(iteration, *losses))
        if iteration > 0:
            print(f"saving checkpoint to {config.out_dir}")
            Path(config.out_dir).mkdir(exist_ok=True)
            Path(config.out_dir, "ckpt.json").write_text(json.dumps(model.logits))
    loss = model.loss(
        dice.sample(pairs[:cut], config.batch_size),
        config.learning_rate / config.batch_size,
    )
    time.sleep(config.pace_s)
    taken_ms = (time.perf_counter() - began) * 1000
    print(
        f"iter {iteration}: loss {loss:.4f}, time {taken_ms:.2f}ms, mfu"
        f" {'-100.00' if iteration < 5 else '0.01'}%"
    )
