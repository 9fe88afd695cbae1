"""Train a small network on points that it makes: `python train.py`.

It needs nothing but Python, and takes a second, so that a sweep over its arguments is
quick: `gpuyard sweep sweep.toml`.
"""

import argparse
import json
import math
import os
import random
import sys
from pathlib import Path

from report import Trackers, say

Point = tuple[float, float, int]


def made_points(count: int, seed: int) -> list[Point]:
    """Points in two rings, one in the other, and the ring of each."""
    chance = random.Random(seed)
    points: list[Point] = []
    for _ in range(count):
        ring = chance.randrange(2)
        angle = chance.uniform(0, 2 * math.pi)
        radius = 1 + ring + chance.gauss(0, 0.25)
        points.append((radius * math.cos(angle), radius * math.sin(angle), ring))
    return points


class Network:
    """One inner layer of `width` neurons, trained point by point."""

    def __init__(self, width: int, seed: int) -> None:
        chance = random.Random(seed)
        self.inner = [[chance.gauss(0, 1) for _ in range(3)] for _ in range(width)]
        self.outer = [chance.gauss(0, 1 / math.sqrt(width)) for _ in range(width + 1)]

    def _answer(self, x: float, y: float) -> tuple[list[float], float]:
        hidden = [math.tanh(a * x + b * y + c) for a, b, c in self.inner]
        hidden.append(1.0)
        total = sum(w * h for w, h in zip(self.outer, hidden, strict=True))
        return hidden, 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))

    def learn(self, points: list[Point], lr: float) -> float:
        """One pass over the points; the mean loss."""
        loss = 0.0
        for x, y, ring in points:
            hidden, chance = self._answer(x, y)
            loss -= math.log(max(chance if ring else 1 - chance, 1e-12))
            error = chance - ring
            for number, weights in enumerate(self.inner):
                slope = error * self.outer[number] * (1 - hidden[number] ** 2)
                for place, value in enumerate((x, y, 1.0)):
                    weights[place] -= lr * slope * value
            for number, value in enumerate(hidden):
                self.outer[number] -= lr * error * value
        return loss / len(points)

    def accuracy(self, points: list[Point]) -> float:
        """The share of the points that it places in the right ring."""
        right = [(self._answer(x, y)[1] > 0.5) == bool(ring) for x, y, ring in points]
        return sum(right) / len(points)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small network.")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--resume", default=os.environ.get("GPUYARD_RESUME_FROM"))
    parser.add_argument("--tensorboard", action="store_true", help="write its files")
    options = parser.parse_args()
    network = Network(options.width, options.seed)
    done = 0
    if options.resume:
        saved = json.loads(Path(options.resume).read_text())
        network.inner = saved["inner"]
        network.outer = saved["outer"]
        done = saved["epoch"]
        say(f"resumed from {options.resume} after epoch {done}")
    points = made_points(options.points, seed=1)
    tested = made_points(options.points, seed=2)
    options.out.mkdir(parents=True, exist_ok=True)
    trackers = Trackers(options, done + 1, board=options.tensorboard)
    for epoch in range(done + 1, options.epochs + 1):
        loss = network.learn(points, options.lr)
        found = network.accuracy(tested)
        say(f"epoch {epoch}/{options.epochs} loss={loss:.4f} val_accuracy={found:.4f}")
        trackers.log(epoch, {"loss": loss, "val_accuracy": found})
        path = options.out / f"ckpt-{epoch:04d}.json"
        temporary = path.with_suffix(".tmp")
        saved = {"epoch": epoch, "inner": network.inner, "outer": network.outer}
        temporary.write_text(json.dumps(saved))
        temporary.replace(path)
    trackers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
