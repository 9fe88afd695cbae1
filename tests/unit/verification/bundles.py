"""A whole check as evidence, for tests to spoil."""

import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.verification.claims import Expected
from gpuyard.verification.verdict import Evidence

NOW = 1_790_000_000.0
SERIES = tuple(f"prompt {number}" for number in range(12))
ANSWERS = {prompt: f"the answer to {prompt} é" for prompt in SERIES}


def answer_file(answers: object) -> bytes:
    return json.dumps(
        answers, sort_keys=True, ensure_ascii=False, separators=(",", ":")
    ).encode()


def answered(answers: object) -> dict[str, Any]:
    """The fields of an answer file and of the hash said of it."""
    file = answers if isinstance(answers, bytes) else answer_file(answers)
    return {"answers": file, "sha256": hashlib.sha256(file).hexdigest()}


def evidence(**changes: Any) -> Evidence:
    """A check that was passed, with the changes."""
    fields: dict[str, Any] = {
        "check": "chk_1",
        "batch": "bat_1",
        "executor": "slurm/a100",
        "gpu_class": "practice-12",
        "trusted": "own/0",
        "delivery": "stream",
        "settings": {"temperature": 0.5},
        "engine": {"kind": "mock"},
        "seed": 7,
        "series": SERIES,
        "hidden": SERIES[4],
        "trusted_answer": ANSWERS[SERIES[4]],
        "deadline_s": 10.0,
        "released_at": NOW,
        "hashed_at": NOW + 8,
        "claimed_at": NOW + 8.5,
        "expected": Expected("practice-12"),
        **answered(ANSWERS),
    }
    return Evidence(**{**fields, **changes})


def public_pem(key: Ed25519PrivateKey) -> str:
    """The public key in PEM, as another program writes it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.PEM, form).decode()
