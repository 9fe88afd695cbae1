"""What a solver says of its GPU, judged against its class: evidence beside the hidden answers.

All of it is the executor's word but for two things: the digest of the memory proof, and the time that we measured. The
claims are `{"inventory": [GPU, …], "vram": {…}, "speed": {…}}`, with `{"failed": why}` for a probe that failed. A GPU
is `{"name", "memory_mb", "uuid", "driver", "compute_capability"}` as its driver says it, and only those are listed that
the solver's job was given.
"""

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, classify, compute_capability
from gpuyard.verification.calibration import Range

MOST_GPUS = 64
# What drivers and error correction keep of nominal VRAM: up to a twelfth (an A10G shows 22.2 GiB of 24).
_LEAST_MEMORY, _MOST_MEMORY = 0.9, 1.1
_UUID = re.compile(r"GPU-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)
_DRIVER = re.compile(r"\d{3}\.\d{1,3}(\.\d{1,3})?")
_FIGURES = ("tflops", "bandwidth_gbs")
_ALL = "all"


class Claim(StrEnum):
    """What an executor can be asked for beside its answers."""

    INVENTORY = "inventory"
    VRAM = "vram"
    SPEED = "speed"


def claims_of(words: Sequence[str]) -> frozenset[Claim]:
    """The claims that a person asks for by their names, or all at once by `all`; InvalidInputError."""
    if unknown := [word for word in words if word != _ALL and word not in set(Claim)]:
        remedy = f"write {', '.join(Claim)} or {_ALL}; repeat --claim for several"
        raise InvalidInputError.of("--claim", f"there is no claim {quoted(unknown[0])}", remedy)
    return frozenset(Claim if _ALL in words else map(Claim, words))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `ok` is None where there was nothing to hold it against."""

    name: str
    ok: bool | None
    said: str
    expected: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What was asked for, and what is right.

    `inventory`, `vram_gb` (0: no) and `speed` say what was asked for. `vram_digest` is a trusted executor's for the
    same nonce, or our own; `claims_s` the longest time from the answers' hash to the claims. `shared` maps UUIDs to
    other executors that showed them.
    """

    gpu_class: str
    inventory: bool = False
    speed: bool = False
    vram_gb: float = 0.0
    vram_digest: str | None = None
    claims_s: float | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    shared: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def asked(self) -> set[str]:
        """The claims that were asked for, by their names."""
        wanted = {"inventory": self.inventory, "vram": self.vram_gb, "speed": self.speed}
        return {name for name, asked in wanted.items() if asked}


def judge(said: object, expected: Expected, elapsed_s: float | None) -> tuple[Finding, ...]:
    """A finding for each thing that was asked for. What was asked for and is not said counts as wrong: a cheater would
    leave out what does not suit.

    `elapsed_s`: from the answers' hash to the claims, by our clock.
    """
    claims = _object(said)
    findings: list[Finding] = []
    if expected.inventory:
        findings += _inventory(claims.get("inventory"), expected)
    if expected.vram_gb:
        findings += _vram(_object(claims.get("vram")), expected)
    if expected.speed:
        findings += _speed(_object(claims.get("speed")), expected)
    if findings:
        findings.append(_time(elapsed_s, expected.claims_s))
    return tuple(findings)


def shared_uuids(claims: Mapping[str, object]) -> dict[str, dict[str, str]]:
    """Executor → UUID → another executor with the same one, from the claims of one batch by executor.

    UUIDs are compared as numbers: neither case nor a second listing hides one.
    """
    seen: dict[str, list[str]] = {}
    for executor, said in claims.items():
        for uuid in dict.fromkeys(_uuids(_gpus(_object(said).get("inventory")))):
            seen.setdefault(uuid, []).append(executor)
    shared: dict[str, dict[str, str]] = {}
    for uuid, executors in seen.items():
        if len(executors) > 1:
            for executor in executors:
                shared.setdefault(executor, {})[uuid] = executors[executors[0] == executor]
    return shared


def _inventory(said: object, expected: Expected) -> list[Finding]:
    gpus = _gpus(said)
    if not gpus:
        return [Finding("inventory", False, quoted(said), f"a list of 1 to {MOST_GPUS} GPUs")]
    own = _uuids(gpus)
    uuid_ok = len(set(own)) == len(gpus) and not any(uuid in expected.shared for uuid in own)
    others = sorted({expected.shared[uuid] for uuid in own if uuid in expected.shared})
    unique = f"one of its own, not that of {', '.join(others)}" if others else "one of its own, as GPU-… "
    findings = [
        Finding("uuid", uuid_ok, _said(gpus, "uuid"), unique.strip()),
        Finding("driver", all(_DRIVER.fullmatch(_text(gpu, "driver")) for gpu in gpus), _said(gpus, "driver"),
                "a driver's version, such as 570.86.15"),
    ]  # fmt: skip
    return [*_model(gpus, expected.gpu_class), *findings]


def _model(gpus: Sequence[Mapping[str, Any]], name: str) -> list[Finding]:
    """Name, memory and compute capability against the catalogue's row; a class without a GPU has none."""
    if name not in GPU_CLASSES:
        return [Finding("model", None, _said(gpus, "name"), f"nothing: {name} is no class of GPUs")]
    gpu_class = GPUClass(name)
    spec = GPU_CLASSES[gpu_class]
    sizes = [_number(gpu, "memory_mb") / 1024 / spec.memory_gb for gpu in gpus]
    classes = [classify(_text(gpu, "name"), int(_number(gpu, "memory_mb"))) for gpu in gpus]
    capable = [_capability(gpu) == compute_capability(spec.compute_capability) for gpu in gpus]
    return [
        Finding("model", all(one is gpu_class for one in classes), _said(gpus, "name"), str(gpu_class)),
        Finding("memory", all(_LEAST_MEMORY <= size <= _MOST_MEMORY for size in sizes), _said(gpus, "memory_mb"),
                f"{spec.memory_gb * 1024} MB, less what the driver keeps"),
        Finding("compute_capability", all(capable), _said(gpus, "compute_capability"), spec.compute_capability),
    ]  # fmt: skip


def _vram(said: Mapping[str, Any], expected: Expected) -> list[Finding]:
    digest = _text(said, "digest")
    right = expected.vram_digest
    held = _number(said, "gigabytes")
    # Rows come in pairs, so a little less than was asked for is held.
    enough = held >= expected.vram_gb * 0.99 or 0 <= expected.vram_gb - held <= 1 / 1024
    same = None if right is None else hmac.compare_digest(digest.encode(), right.encode())
    if not re.fullmatch("[0-9a-f]{64}", digest):
        same = False
    return [
        Finding(
            "vram", enough, f"{held:g} GiB held" if held else quoted(said.get("failed")), f"{expected.vram_gb:g} GiB"
        ),
        Finding("vram_digest", same, quoted(said.get("digest")), right or "not computed by anybody that is trusted"),
    ]


def _speed(said: Mapping[str, Any], expected: Expected) -> list[Finding]:
    return [_figure(name, said, expected.ranges.get(name)) for name in _FIGURES]


def _figure(name: str, said: Mapping[str, Any], allowed: Range | None) -> Finding:
    figure = _number(said, name)
    if figure <= 0:
        return Finding(name, False, quoted(said.get("failed")), "a figure")
    if allowed is None:
        return Finding(name, None, f"{figure:g}", "not calibrated")
    return Finding(name, figure in allowed, f"{figure:g}", f"{allowed.low:g} to {allowed.high:g}")


def _time(elapsed_s: float | None, longest_s: float | None) -> Finding:
    if elapsed_s is None:
        return Finding("claims_s", False, "no claims came", "claims")
    if longest_s is None:
        return Finding("claims_s", None, f"{elapsed_s:.3f} s", "not calibrated")
    return Finding("claims_s", 0 <= elapsed_s <= longest_s, f"{elapsed_s:.3f} s", f"at most {longest_s:.3f} s")


def _object(said: object) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], said) if isinstance(said, Mapping) else {}


def _gpus(said: object) -> list[Mapping[str, Any]]:
    """An inventory's GPUs; none where it is no list of objects, or of too many."""
    gpus = cast(list[Any], said) if isinstance(said, list) else []
    return gpus if len(gpus) <= MOST_GPUS and all(isinstance(gpu, Mapping) for gpu in gpus) else []


def _uuids(gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those that have the form of one, in lower case."""
    matches = (_UUID.fullmatch(_text(gpu, "uuid")) for gpu in gpus)
    return [match[1].lower() for match in matches if match]


def _capability(gpu: Mapping[str, Any]) -> tuple[int, int] | None:
    try:
        return compute_capability(_text(gpu, "compute_capability"))
    except ValueError:
        return None


def _text(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    return value if isinstance(value, str) and len(value) <= 200 and value.isascii() else ""


def _number(said: Mapping[str, Any], key: str) -> float:
    """A figure of sense, else 0: no NaN, no infinity, no truth."""
    value: Any = said.get(key)
    return float(value) if type(value) in (int, float) and 0 < value < 1e9 else 0.0


def _said(gpus: Sequence[Mapping[str, Any]], key: str) -> str:
    return ", ".join(dict.fromkeys(quoted(gpu.get(key)) for gpu in gpus))
