"""Answers with fingerprints, by the mock engine in this process."""

import hashlib
from collections.abc import Sequence
from typing import Any

from gpuyard.verification.fingerprints import (
    PrintDifference,
    difference,
    read_fingerprints,
)
from gpuyard.verification.protocol import SAMPLING
from gpuyard.verification.solver.engines.fingerprints import (
    pack,
    pack_tokens,
    unpack_tokens,
)
from gpuyard.verification.solver.engines.mock import MockSolverEngine
from gpuyard.verification.solver.messages import canonical
from gpuyard.verification.tolerance import sampling_of
from gpuyard.verification.trusted_executor import FollowedAnswers

OTHER_VERSION: dict[str, Any] = {"version": "2", "rounding": 0.02}
"""The engine of an honest executor whose digits differ by rounding."""


class PrintedFile:
    """What an executor with this engine answers to prompts under a seed."""

    def __init__(
        self, prompts: Sequence[str], seed: int, engine: dict[str, Any] | None = None
    ) -> None:
        self.prompts = sorted(prompts)
        self.seed = seed
        mock = MockSolverEngine(engine or {}, dict(SAMPLING))
        self.answers = mock.fingerprints(self.prompts, seed, None)

    @property
    def texts(self) -> bytes:
        """The file of the answers."""
        texts = [answer.text for answer in self.answers]
        return canonical(dict(zip(self.prompts, texts, strict=True)))

    @property
    def prints(self) -> bytes:
        """The file of their fingerprints."""
        return pack(self.answers)

    @property
    def tokens(self) -> str:
        """Their tokens, as an order has them."""
        return pack_tokens([one.token for one in a.prints] for a in self.answers)

    def followed(self, engine: dict[str, Any] | None = None) -> FollowedAnswers:
        """What the trusted executor makes of the tokens."""
        return follow(self.prompts, self.seed, self.tokens, engine)


def follow(
    prompts: Sequence[str], seed: int, tokens: str, engine: dict[str, Any] | None = None
) -> FollowedAnswers:
    """What a trusted executor makes of given tokens, by default with the plain mock."""
    mock = MockSolverEngine(engine or {}, dict(SAMPLING))
    found = mock.fingerprints(list(prompts), seed, unpack_tokens(tokens))
    texts = {prompt: one.text for prompt, one in zip(prompts, found, strict=True)}
    return FollowedAnswers(texts, pack(found))


def differences(file: PrintedFile) -> list[PrintDifference]:
    """How much each answer differs from what the trusted executor makes of it."""
    count = len(file.prompts)
    most = SAMPLING["max_tokens"]
    checked = read_fingerprints(file.prints, count, most)
    right = read_fingerprints(file.followed().fingerprints, count, most)
    pairs = zip(checked, right, strict=True)
    sampling = sampling_of(SAMPLING)
    return [difference(one, trusted, sampling) for one, trusted in pairs]


def sha256(data: bytes) -> str:
    """The hash of a file, as an executor says it."""
    return hashlib.sha256(data).hexdigest()
