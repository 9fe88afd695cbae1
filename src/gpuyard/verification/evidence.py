"""Evidence: one signed file that shows the result of a check.

Anyone can check it without us. The file is JSON: `{"format": "gpuyard evidence",
"version": 3, "key": hex, "signature": hex, "body": {…}}`. The signature (Ed25519) is
over a fixed prefix and the bytes of `body` exactly as they are in the file.
"""

import os
import secrets
import stat
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification import keys
from gpuyard.verification.fingerprints import most_bytes
from gpuyard.verification.protocol import LONGEST_LINE
from gpuyard.verification.verdict import (
    CheckOutcome,
    Evidence,
    VerdictLine,
    judge,
    outcome,
)

# The largest file: many times what 480 answers need. Malicious JSON takes up to thirty
# times as much memory.
LARGEST = 16 * 2**20
# The largest answer file. 480 answers of 256 tokens need a tenth of it.
LONGEST_ANSWERS = LARGEST // 4
# What is kept free for what comes after the answers: reasons, digests, a second answer.
_LATER = 2**19
# So much of each token has room at least: about three times what English needs.
_BYTES_PER_TOKEN = 12
FORMAT = "gpuyard evidence"
VERSION = 3
# What of an engine is needed to repeat its answers, and is no secret.
_PUBLIC = (
    "kind",
    "model",
    "dtype",
    "quantization",
    "max_model_len",
    "gpu_memory_utilization",
    "tensor_parallel_size",
    "batch_invariant",
    "batch_size",
    "device",
)
_CONTEXT = b"gpuyard evidence 1\n"


@dataclass(frozen=True, slots=True)
class CheckedEvidence:
    """What an evidence file shows.

    `about_file`: whether the file can be trusted. `about_check`: what the executor did.
    `outcome`: the outcome that follows. A sound file proves its outcome, as far as you
    trust its signer, and only for the time `at`: when the seed was sent or the executor
    declined (UTC seconds; None for neither). `delivery`: how the executor got the seed,
    over a `stream` or on the `stdin` of its job.
    """

    check: str
    executor: str
    gpu_class: str
    at: float | None
    delivery: str
    signer: str
    outcome: CheckOutcome
    about_file: tuple[VerdictLine, ...]
    about_check: tuple[VerdictLine, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing in the file is forged, changed or contradictory."""
        return all(line.ok is not False for line in self.about_file)


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    outcome: CheckOutcome
    evidence: Evidence


class _EvidenceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    key: str
    signature: str
    body: msgspec.Raw


def public_order(order: dict[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """The `settings` and `engine` of an order, for the evidence.

    That is what is needed to repeat the answers, without addresses, keys or tokens.
    """
    engine = {
        name: str(value)
        for name, value in order.get("engine", {}).items()
        if name in _PUBLIC
    }
    return dict(order.get("settings", {})), engine


def _in_base64(size: int) -> int:
    return -(-size // 3) * 4


def _least_answers(prompts: int, max_tokens: int) -> int:
    """The bytes that the answers to so many prompts have room for in any case.

    The prompts come on top: they are the keys of the answer file.
    """
    return min(prompts * max_tokens * _BYTES_PER_TOKEN, LONGEST_ANSWERS // 2)


def longest_series(prompts: int, max_tokens: int) -> int:
    """How many bytes of JSON a series may have, so that all evidence of it fits.

    Beside it are two files of fingerprints, the answers, the claims, and what comes
    later. The answer file has the series in it once more, in base64.
    """
    prints = 2 * _in_base64(most_bytes(prompts, max_tokens))
    least = _least_answers(prompts, max_tokens)
    room = LARGEST - prints - _in_base64(least) - LONGEST_LINE - _LATER
    return min(room * 3 // 7, LONGEST_ANSWERS - least)


def longest_answers(evidence: Evidence, max_tokens: int) -> int:
    """How many bytes the answer file of a check may have, so that its evidence fits.

    `evidence`: what is known before the answers come.
    """
    prompts = len(evidence.series)
    known = len(msgspec.json.encode(_Body(CheckOutcome.FAILED, evidence)))
    room = LARGEST - known - _LATER
    if evidence.printed is not None:
        room -= 2 * _in_base64(most_bytes(prompts, max_tokens))
        most = room * 3 // 4
    else:
        # The trusted answers to all prompts may follow, as texts.
        most = room * 3 // 7
    series = len(msgspec.json.encode(evidence.series))
    least = series + _least_answers(prompts, max_tokens)
    return min(max(most, least), LONGEST_ANSWERS)


def write_evidence(
    path: Path, evidence: Evidence, key: Ed25519PrivateKey
) -> CheckOutcome:
    """Judge a check, sign its evidence and write the file atomically.

    The caller syncs the folder: once for all files. Raises InvalidInputError when the
    file would be too large.
    """
    judged = outcome(judge(evidence))
    body = msgspec.json.encode(_Body(judged, evidence))
    signature = key.sign(_CONTEXT + body).hex()
    content = msgspec.json.encode(
        _EvidenceFile(
            FORMAT, VERSION, keys.public_hex(key), signature, msgspec.Raw(body)
        )
    )
    if len(content) > LARGEST:
        raise InvalidInputError.of(
            "answers",
            f"make {len(content)} bytes of evidence",
            f"keep it below {LARGEST}",
        )
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return judged


def check_evidence(path: Path, key: str | None = None) -> CheckedEvidence:
    """Check a file, and judge its evidence anew.

    `key`: the instance's public key, hex or PEM, as the instance gave it. Raises
    InvalidInputError when the file is not evidence: unreadable, too large, incomplete,
    or of another format or version.
    """
    file, body = _read(path)
    evidence = body.evidence
    lines = judge(body.evidence)
    found = outcome(lines)
    agrees = VerdictLine(
        "outcome",
        found is body.outcome,
        f"says {body.outcome}; the evidence comes to {found}",
    )
    about_file = (_signature(file), _signer(file.key, key), *_series(evidence), agrees)
    at = evidence.released_at or evidence.declined_at
    return CheckedEvidence(
        evidence.check,
        evidence.executor,
        evidence.gpu_class,
        at,
        evidence.delivery,
        file.key,
        found,
        about_file,
        lines,
    )


def _read(path: Path) -> tuple[_EvidenceFile, _Body]:
    """Decode with types, so that other JSON is never built up in memory."""
    content = _bytes(path)
    try:
        file = msgspec.json.decode(content, type=_EvidenceFile)
        if file.format == FORMAT and file.version < VERSION:
            raise InvalidInputError.of(
                str(path),
                f"is of version {file.version}, written by an older gpuyard",
                "check it with that version",
            )
        if (file.format, file.version) != (FORMAT, VERSION):
            raise _no_evidence(
                path,
                f"is {file.format!r:.60} of version {file.version}, not {FORMAT!r} of"
                f" {VERSION}",
            )
        return file, msgspec.json.decode(file.body, type=_Body)
    except (ValueError, RecursionError) as error:
        raise _no_evidence(path, f"is no evidence: {str(error)[:200]}") from None


def _bytes(path: Path) -> bytes:
    content = b""
    with suppress(OSError):
        # Opening a pipe or a device could block for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                content = file.read(LARGEST + 1)
    if not content:
        raise _no_evidence(path, "is no file that can be read, or an empty one")
    if len(content) > LARGEST:
        raise _no_evidence(
            path, f"is larger than evidence ever is, which is {LARGEST} bytes"
        )
    return content


def _no_evidence(path: Path, fault: str) -> InvalidInputError:
    return InvalidInputError.of(
        str(path), fault, "give a file that `gpuyard verify evidence` wrote"
    )


def _signature(file: _EvidenceFile) -> VerdictLine:
    try:
        keys.read_public(file.key).verify(
            bytes.fromhex(file.signature), _CONTEXT + bytes(file.body)
        )
    except (InvalidSignature, InvalidInputError, ValueError):
        return VerdictLine(
            "signature",
            False,
            "is not that of the key in the file: the file was changed or made up",
        )
    return VerdictLine("signature", True, "nothing was changed since it was signed")


def _signer(signer: str, key: str | None) -> VerdictLine:
    if key is None:
        return VerdictLine(
            "signer",
            None,
            f"{signer[:64]}; give the instance's key to know whether it is its own",
        )
    same = keys.public_hex(keys.read_public(key)) == signer.lower()
    return VerdictLine(
        "signer",
        same,
        "is the key that was given" if same else f"is {signer[:64]}, another key",
    )


def _series(evidence: Evidence) -> list[VerdictLine]:
    """Check what the instance put in.

    With a hidden prompt outside the series any executor could be blamed.
    """
    times = Counter(evidence.series)
    repeated = len(evidence.series) - len(times)
    return [
        VerdictLine(
            "series",
            repeated == 0 and len(times) > 0,
            f"{len(evidence.series)} prompts, {repeated} of them twice",
        ),
        VerdictLine(
            "hidden",
            evidence.hidden in times,
            (
                "the hidden prompt is one of them"
                if evidence.hidden in times
                else "the hidden prompt is none of them"
            ),
        ),
    ]
