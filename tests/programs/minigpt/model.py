"""A character bigram model, trained by gradient descent, in plain Python."""

import math


class Bigram:
    """The logits of each character after each other one."""

    def __init__(self, vocabulary: list[str]) -> None:
        self.index = {character: n for n, character in enumerate(vocabulary)}
        self.logits = [[0.0] * len(vocabulary) for _ in vocabulary]

    def parameters(self) -> int:
        return len(self.logits) ** 2

    def loss(self, pairs: list[tuple[str, str]], learning_rate: float = 0.0) -> float:
        """The mean cross-entropy of `pairs`; with a learning rate, also one step down
        its gradient.
        """
        total = 0.0
        for before, after in pairs:
            row = self.logits[self.index[before]]
            target = self.index[after]
            odds = [math.exp(logit) for logit in row]
            whole = sum(odds)
            total -= math.log(odds[target] / whole)
            for n, odd in enumerate(odds):
                row[n] -= learning_rate * (odd / whole - (n == target))
        return total / len(pairs)
