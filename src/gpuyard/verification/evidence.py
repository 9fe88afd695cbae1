"""Evidence: one signed file that shows what became of a check, which anybody checks without us.

The file is JSON: `{"format": "gpuyard evidence", "version": 1, "key": hex, "signature": hex, "body": {…}}`. The
signature (Ed25519) is over the bytes of `body` exactly as they stand in the file, behind words of its own.
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
from gpuyard.verification.trust import Outcome
from gpuyard.verification.verdict import Evidence, Line, judge, outcome

# Bytes of a file, most of them answers: many times what 480 of them need. JSON that is made to be costly takes up to
# thirty times as much memory.
LARGEST = 16 * 2**20
# Of an answer file, so that with series, claims and receipts at their longest it fits. 480 answers of 256 tokens have a
# tenth of it.
LONGEST_ANSWERS = LARGEST // 4
FORMAT, VERSION = "gpuyard evidence", 1
_CONTEXT = b"gpuyard evidence 1\n"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`outcome`: what the evidence comes to. `about_file` says whether the file can be relied on, `about_check` what
    the executor did. A file that is `sound` proves its outcome, a failure too, as far as its signer is believed; for
    the time `at` which the seed was out or the executor declined (UTC seconds; None for neither), and no other.
    `delivery` is how the seed came to it: over a `stream`, or on the `stdin` of its job.
    """

    check: str
    executor: str
    gpu_class: str
    at: float | None
    delivery: str
    signer: str
    outcome: Outcome
    about_file: tuple[Line, ...]
    about_check: tuple[Line, ...]

    @property
    def sound(self) -> bool:
        """Nothing in it is forged, changed or at odds with the rest."""
        return all(line.ok is not False for line in self.about_file)


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    outcome: Outcome
    evidence: Evidence


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    key: str
    signature: str
    body: msgspec.Raw


def public_order(order: dict[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """`settings` and `engine` of an order for the evidence: what repeats the answers, and no address, key or token."""
    engine = {name: str(value) for name, value in order.get("engine", {}).items() if name in ("kind", "model")}
    return dict(order.get("settings", {})), engine


def write(path: Path, evidence: Evidence, key: Ed25519PrivateKey) -> Outcome:
    """Judge, sign and write; `path` shows the whole file or nothing. InvalidInputError when it would be too large."""
    judged = outcome(judge(evidence))
    body = msgspec.json.encode(_Body(judged, evidence))
    signature = key.sign(_CONTEXT + body).hex()
    content = msgspec.json.encode(_File(FORMAT, VERSION, keys.public_hex(key), signature, msgspec.Raw(body)))
    if len(content) > LARGEST:
        raise InvalidInputError.of("answers", f"make {len(content)} bytes of evidence", f"keep it below {LARGEST}")
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fresh.write_bytes(content)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return judged


def check(path: Path, key: str | None = None) -> Verdict:
    """What a file proves, all of it computed anew. `key` is the yard's public key as it gave it out: hex or PEM.

    InvalidInputError when it is no evidence: not a file, too large, cut off, of another form or version.
    """
    file, body = _read(path)
    evidence, lines = body.evidence, judge(body.evidence)
    found = outcome(lines)
    agrees = Line("outcome", found is body.outcome, f"says {body.outcome}; the evidence comes to {found}")
    about_file = (_signature(file), _signer(file.key, key), *_series(evidence), agrees)
    at = evidence.released_at or evidence.declined_at
    return Verdict(
        evidence.check, evidence.executor, evidence.gpu_class, at, evidence.delivery, file.key, found, about_file, lines
    )


def _read(path: Path) -> tuple[_File, _Body]:
    """Typed from the first byte on: what is no evidence is never built up in memory."""
    content = _bytes(path)
    try:
        file = msgspec.json.decode(content, type=_File)
        if (file.format, file.version) != (FORMAT, VERSION):
            raise _no_evidence(path, f"is {file.format!r:.60} of version {file.version}, not {FORMAT!r} of {VERSION}")
        return file, msgspec.json.decode(file.body, type=_Body)
    except (ValueError, RecursionError) as error:
        raise _no_evidence(path, f"is no evidence: {str(error)[:200]}") from None


def _bytes(path: Path) -> bytes:
    content = b""
    with suppress(OSError):
        # A pipe or a device could hold the reader up for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                content = file.read(LARGEST + 1)
    if not content:
        raise _no_evidence(path, "is no file that can be read, or an empty one")
    if len(content) > LARGEST:
        raise _no_evidence(path, f"is larger than evidence ever is, which is {LARGEST} bytes")
    return content


def _no_evidence(path: Path, fault: str) -> InvalidInputError:
    return InvalidInputError.of(str(path), fault, "give a file that `gpuyard verify evidence` wrote")


def _signature(file: _File) -> Line:
    try:
        keys.read_public(file.key).verify(bytes.fromhex(file.signature), _CONTEXT + bytes(file.body))
    except (InvalidSignature, InvalidInputError, ValueError):
        return Line("signature", False, "is not that of the key in the file: the file was changed or made up")
    return Line("signature", True, "nothing was changed since it was signed")


def _signer(signer: str, key: str | None) -> Line:
    if key is None:
        return Line("signer", None, f"{signer[:64]}; give the yard's key to know whether it is the yard's")
    same = keys.public_hex(keys.read_public(key)) == signer.lower()
    return Line("signer", same, "is the key that was given" if same else f"is {signer[:64]}, another key")


def _series(evidence: Evidence) -> list[Line]:
    """What the yard put in: a hidden prompt that nobody was asked would blame anybody."""
    times = Counter(evidence.series)
    repeated = len(evidence.series) - len(times)
    return [
        Line("series", repeated == 0 and len(times) > 0, f"{len(evidence.series)} prompts, {repeated} of them twice"),
        Line("hidden", evidence.hidden in times, "the hidden prompt is one of them" if evidence.hidden in times
             else "the hidden prompt is none of them"),
    ]  # fmt: skip
