"""Claims: what a solver says about its GPU, judged against its class.

They are extra evidence beside the hidden answers. An inventory is the executor's own
word. Memory and speed are judged by digests, which a trusted executor computes again,
and by the time that we measured.

Claims are `{"inventory": [GPU, …], "vram": {…}, "speed": {…}}`; a probe that failed is
`{"failed": why}`. A GPU is `{"name", "memory_mb", "uuid", "driver",
"compute_capability"}` as its driver reports it. Only GPUs of the solver's own job are
listed.
"""

import hmac
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, cast

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, classify, compute_capability
from gpuyard.verification.proof_sizes import (
    PRODUCT_SIZE,
    passes_to_ask,
    products_to_ask,
    vram_gb_to_ask,
)

MOST_GPUS = 64
# Drivers and error correction take up to a twelfth of the nominal VRAM (an A10G shows
# 22.2 of 24 GiB).
_LEAST_MEMORY = 0.9
_MOST_MEMORY = 1.1
_UUID = re.compile(r"GPU-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)
_DRIVER = re.compile(r"\d{3}\.\d{1,3}(\.\d{1,3})?")
_DIGEST = re.compile("[0-9a-f]{64}")
_ALL = "all"


class Claim(StrEnum):
    """What an executor can be asked for beside its answers."""

    INVENTORY = "inventory"
    VRAM = "vram"
    SPEED = "speed"


def claims_of(words: Sequence[str]) -> frozenset[Claim]:
    """The claims that a person names; `all` means every one. InvalidInputError."""
    if unknown := [word for word in words if word != _ALL and word not in set(Claim)]:
        remedy = f"write {', '.join(Claim)} or {_ALL}; repeat --claim for several"
        raise InvalidInputError.of(
            "--claim", f"there is no claim {quoted(unknown[0])}", remedy
        )
    return frozenset(Claim if _ALL in words else map(Claim, words))


@dataclass(frozen=True, slots=True)
class ClaimFinding:
    """One judged claim. `ok` is None when there was nothing to compare it with."""

    name: str
    ok: bool | None
    said: str
    expected: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What was asked for, and what is right.

    `inventory`, `vram_gb` (0: no), with how many `passes`, and `products` (how many
    matrix products; 0: none) say what was asked for. `vram_digest`, `speed_digest`:
    those of a trusted executor for `nonce`; `no_digest`: why there are none.
    `claims_s`: the longest time from the answers' hash to the claims. `shared`:
    UUIDs that other executors showed too, with the name of one; `shared_chips`: the
    same for chips that attested themselves, and `earlier_chips` for those with which
    another executor has passed shortly before. `form`: `sxm` or `pcie`, None for
    either. `attestation_root`: the certificate (PEM) by which attestations are judged,
    None to judge none; `attested`: whether each GPU has to attest itself.
    """

    gpu_class: str
    form: str | None = None
    nonce: str = ""
    attestation_root: str | None = None
    attested: bool = False
    inventory: bool = False
    products: int = 0
    vram_gb: float = 0.0
    passes: int = 0
    vram_digest: str | None = None
    speed_digest: str | None = None
    no_digest: str = "not computed by anybody that is trusted"
    claims_s: float | None = None
    shared: Mapping[str, str] = field(default_factory=dict[str, str])
    shared_chips: Mapping[str, str] = field(default_factory=dict[str, str])
    earlier_chips: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def asked(self) -> set[str]:
        """The names of the claims that were asked for."""
        wanted = {
            "inventory": self.inventory,
            "vram": self.vram_gb,
            "speed": self.products,
        }
        return {name for name, asked in wanted.items() if asked}

    @property
    def has_digests(self) -> bool:
        """Whether a trusted executor has computed any digest."""
        return self.vram_digest is not None or self.speed_digest is not None

    @property
    def proofs(self) -> dict[str, Any]:
        """The proofs that were asked for, as they stand in an order."""
        found: dict[str, Any] = {}
        if self.vram_gb:
            found["vram_gb"] = self.vram_gb
            found["passes"] = self.passes
        if self.products:
            found["speed"] = {"size": PRODUCT_SIZE, "steps": self.products}
        return found


def judge_claims(
    said: object, expected: Expected, elapsed_s: float | None, nonce: str = ""
) -> tuple[ClaimFinding, ...]:
    """Judge each claim that was asked for.

    A claim that is missing counts as wrong, since a cheater would leave it out.
    `elapsed_s`: the time from the answers' hash to the claims, by our clock. `nonce`:
    that of the claims. Digests that were computed for another one are not compared.
    """
    claims = _object(said)
    findings: list[ClaimFinding] = []
    if expected.nonce != nonce and expected.has_digests:
        why = "computed for another nonce than that of these answers"
        expected = replace(expected, vram_digest=None, speed_digest=None, no_digest=why)
    if expected.inventory:
        findings += _inventory(claims.get("inventory"), expected, nonce)
    if expected.vram_gb:
        findings += _vram(_object(claims.get("vram")), expected)
    if expected.products:
        findings.append(_speed(_object(claims.get("speed")), expected))
    # The time of an inventory alone shows nothing.
    if expected.proofs:
        findings.append(_time(elapsed_s, expected.claims_s))
    return tuple(findings)


def shared_uuids(claims: Mapping[str, object]) -> dict[str, dict[str, str]]:
    """Find UUIDs that several executors of a batch show.

    Returns executor → UUID → another executor with it. Case does not matter, and
    listing a UUID twice does not hide it.
    """
    return shown_twice(
        {
            executor: _uuids(_gpus(_object(said).get("inventory")))
            for executor, said in claims.items()
        }
    )


def shown_twice(shown: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """What several executors show: executor → what → another executor with it."""
    seen: dict[str, list[str]] = {}
    for executor, things in shown.items():
        for thing in dict.fromkeys(things):
            seen.setdefault(thing, []).append(executor)
    shared: dict[str, dict[str, str]] = {}
    for thing, executors in seen.items():
        if len(executors) > 1:
            first, second = executors[:2]
            for executor in executors:
                other = second if executor == first else first
                shared.setdefault(executor, {})[thing] = other
    return shared


def attested_chips(said: object, root: str, nonce: str | None = None) -> list[str]:
    """The chips that claims attest; one whose attestation shows nothing is left out.

    `nonce`: what the reports have to be for; None if that was judged before.
    """
    from gpuyard.verification.attestation import AttestationError, attested_by

    chips: list[str] = []
    for gpu in _gpus(_object(said).get("inventory")):
        with suppress(AttestationError):
            chips.append(attested_by(gpu.get("attestation"), nonce, root).key)
    return chips


def _inventory(said: object, expected: Expected, nonce: str) -> list[ClaimFinding]:
    gpus = _gpus(said)
    if not gpus:
        return [
            ClaimFinding(
                "inventory", False, quoted(said), f"a list of 1 to {MOST_GPUS} GPUs"
            )
        ]
    own = _uuids(gpus)
    uuid_ok = len(set(own)) == len(gpus) and not any(
        uuid in expected.shared for uuid in own
    )
    others = sorted({expected.shared[uuid] for uuid in own if uuid in expected.shared})
    unique = (
        f"one of its own, not that of {', '.join(others)}"
        if others
        else "one of its own, as GPU-… "
    )
    findings = [
        ClaimFinding("uuid", uuid_ok, _said(gpus, "uuid"), unique.strip()),
        ClaimFinding(
            "driver",
            all(_DRIVER.fullmatch(_text(gpu, "driver")) for gpu in gpus),
            _said(gpus, "driver"),
            "a driver's version, such as 570.86.15",
        ),
    ]
    if expected.form:
        names = [_text(gpu, "name") for gpu in gpus]
        right = all(form_of(name) == expected.form for name in names)
        findings.append(ClaimFinding("form", right, _said(gpus, "name"), expected.form))
    findings += _attestation(gpus, expected, nonce)
    return [*_model(gpus, expected.gpu_class), *findings]


def _attestation(
    gpus: Sequence[Mapping[str, Any]], expected: Expected, nonce: str
) -> list[ClaimFinding]:
    """Judge what GPUs attest, if there is something to judge it by."""
    some = any("attestation" in gpu for gpu in gpus)
    if expected.attestation_root is None or not (some or expected.attested):
        return []
    # Late: most claims have no attestation.
    from gpuyard.verification.attestation import (
        AttestationError,
        AttestedChip,
        attested_by,
    )

    wanted = "a report for this check, signed by the GPU"
    chips: list[AttestedChip] = []
    for gpu in gpus:
        said = gpu.get("attestation")
        try:
            chips.append(attested_by(said, nonce, expected.attestation_root))
        except AttestationError as error:
            return [ClaimFinding("attestation", False, f"{error}", wanted)]
    subjects = quoted("; ".join(chip.subject for chip in chips))
    keys = [chip.key for chip in chips]
    if others := sorted({expected.shared_chips.get(key, "") for key in keys} - {""}):
        wanted = f"a chip of its own, not that of {', '.join(others)}"
        return [ClaimFinding("attestation", False, subjects, wanted)]
    if len(set(keys)) < len(keys):
        return [ClaimFinding("attestation", False, subjects, "a chip for each GPU")]
    if others := sorted({expected.earlier_chips.get(key, "") for key in keys} - {""}):
        wanted = f"a chip with which {', '.join(others)} has not passed just before"
        return [ClaimFinding("attestation", None, subjects, wanted)]
    return [ClaimFinding("attestation", True, subjects, wanted)]


def form_of(name: str) -> str | None:
    """The form of a card by its name: `sxm`, `pcie`, or None if that is not said.

    NVIDIA calls the SXM form of an H100 `HBM3`.
    """
    if re.search(r"SXM|\bHBM3\b", name):
        return "sxm"
    return "pcie" if "PCI" in name.upper() else None


def _model(gpus: Sequence[Mapping[str, Any]], name: str) -> list[ClaimFinding]:
    """Compare name, memory and compute capability with the catalogue.

    A class without a GPU is not judged.
    """
    if name not in GPU_CLASSES:
        return [
            ClaimFinding(
                "model",
                None,
                _said(gpus, "name"),
                f"nothing: {name} is no class of GPUs",
            )
        ]
    gpu_class = GPUClass(name)
    spec = GPU_CLASSES[gpu_class]
    sizes = [_number(gpu, "memory_mb") / 1024 / spec.memory_gb for gpu in gpus]
    classes = [
        classify(_text(gpu, "name"), int(_number(gpu, "memory_mb"))) for gpu in gpus
    ]
    capable = [
        _capability(gpu) == compute_capability(spec.compute_capability) for gpu in gpus
    ]
    return [
        ClaimFinding(
            "model",
            all(one is gpu_class for one in classes),
            _said(gpus, "name"),
            str(gpu_class),
        ),
        ClaimFinding(
            "memory",
            all(_LEAST_MEMORY <= size <= _MOST_MEMORY for size in sizes),
            _said(gpus, "memory_mb"),
            f"{spec.memory_gb * 1024} MB, less what the driver keeps",
        ),
        ClaimFinding(
            "compute_capability",
            all(capable),
            _said(gpus, "compute_capability"),
            spec.compute_capability,
        ),
    ]


def _vram(said: Mapping[str, Any], expected: Expected) -> list[ClaimFinding]:
    held = _number(said, "gigabytes")
    # Rows come in pairs, so slightly less than was asked for is held.
    enough = held >= expected.vram_gb * 0.99 or 0 <= expected.vram_gb - held <= 1 / 1024
    shown = f"{held:g} GiB held" if held else quoted(said.get("failed"))
    return [
        ClaimFinding("vram", enough, shown, f"{expected.vram_gb:g} GiB"),
        _digest("vram_digest", said, expected.vram_digest, expected.no_digest),
    ]


def _speed(said: Mapping[str, Any], expected: Expected) -> ClaimFinding:
    found = _digest("speed_digest", said, expected.speed_digest, expected.no_digest)
    failed = said.get("failed")
    return replace(found, said=quoted(failed)) if failed is not None else found


def _digest(
    name: str, said: Mapping[str, Any], right: str | None, no_digest: str
) -> ClaimFinding:
    """Compare a digest with the trusted one; what is no digest at all is wrong."""
    digest = _text(said, "digest")
    same = (
        None if right is None else hmac.compare_digest(digest.encode(), right.encode())
    )
    if not _DIGEST.fullmatch(digest):
        same = False
    return ClaimFinding(name, same, quoted(said.get("digest")), right or no_digest)


def _time(elapsed_s: float | None, longest_s: float | None) -> ClaimFinding:
    if elapsed_s is None:
        return ClaimFinding("claims_s", False, "no claims came", "claims")
    if longest_s is None:
        return ClaimFinding("claims_s", None, f"{elapsed_s:.3f} s", "not calibrated")
    return ClaimFinding(
        "claims_s",
        0 <= elapsed_s <= longest_s,
        f"{elapsed_s:.3f} s",
        f"at most {longest_s:.3f} s",
    )


def _object(said: object) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], said) if isinstance(said, Mapping) else {}


def _gpus(said: object) -> list[Mapping[str, Any]]:
    """The GPUs of an inventory; none when it is malformed or too long."""
    gpus = cast(list[Any], said) if isinstance(said, list) else []
    return (
        gpus
        if len(gpus) <= MOST_GPUS and all(isinstance(gpu, Mapping) for gpu in gpus)
        else []
    )


def _uuids(gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """The valid UUIDs, in lower case."""
    matches = (_UUID.fullmatch(_text(gpu, "uuid")) for gpu in gpus)
    return [match[1].lower() for match in matches if match]


def _capability(gpu: Mapping[str, Any]) -> tuple[int, int] | None:
    try:
        return compute_capability(_text(gpu, "compute_capability"))
    except ValueError:
        return None


def _text(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    return (
        value
        if isinstance(value, str) and len(value) <= 200 and value.isascii()
        else ""
    )


def _number(said: Mapping[str, Any], key: str) -> float:
    """A positive finite number, else 0."""
    value: Any = said.get(key)
    return float(value) if type(value) in (int, float) and 0 < value < 1e9 else 0.0


def _said(gpus: Sequence[Mapping[str, Any]], key: str) -> str:
    return ", ".join(dict.fromkeys(quoted(gpu.get(key)) for gpu in gpus))


def wanted_of(gpu_class: GPUClass, claims: frozenset[Claim]) -> Expected:
    """What is expected of a class of which this is claimed."""
    return Expected(
        gpu_class.value,
        inventory=Claim.INVENTORY in claims,
        products=products_to_ask(gpu_class) if Claim.SPEED in claims else 0,
        vram_gb=vram_gb_to_ask(gpu_class) if Claim.VRAM in claims else 0.0,
        passes=passes_to_ask(gpu_class) if Claim.VRAM in claims else 0,
    )


def limit_of(claims: frozenset[Claim]) -> str:
    """Which calibrated time holds for these claims: of one proof by itself, or all."""
    proofs = claims & {Claim.VRAM, Claim.SPEED}
    return f"{next(iter(proofs))}_s" if len(proofs) == 1 else "claims_s"
