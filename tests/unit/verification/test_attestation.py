"""NVIDIA's attestation with a made chain of certificates: what a GPU signs is accepted,
and what anybody else signs is not. No real GPU has been asked.
"""

import base64
import ctypes
from typing import Any

import pytest

from gpuyard.verification.attestation import AttestationError, attested_by
from gpuyard.verification.claims import Expected, judge_claims
from gpuyard.verification.solver.attestation import Report, attestation
from tests.support.attesting import (
    GPU,
    GPU_KEY,
    MIDDLE,
    MIDDLE_KEY,
    ROOT,
    attestation_of,
    issue,
    new_key,
    pem,
    report,
    unreadable_chain,
)

NONCE = "5a" * 32


class Nvml:
    """A driver with a GPU that attests itself."""

    def nvmlDeviceGetConfComputeGpuCertificate(self, _: Any, answer: Any) -> int:  # noqa: N802
        _put(answer, "attestation_chain", pem(GPU, MIDDLE, ROOT).encode())
        return 0

    def nvmlDeviceGetConfComputeGpuAttestationReport(  # noqa: N802
        self, _: Any, answer: Any
    ) -> int:
        _put(answer, "report", report(bytes(answer._obj.nonce)))
        return 0


def _put(answer: Any, field: str, content: bytes) -> None:
    setattr(answer._obj, f"{field}_size", len(content))
    ctypes.memmove(getattr(answer._obj, field), content, len(content))


def said() -> dict[str, str]:
    """What an honest solver says."""
    found = attestation(Nvml(), None, bytes.fromhex(NONCE))
    assert found
    return found


def test_what_a_gpu_signs_for_this_check_is_accepted() -> None:
    chip = attested_by(said(), NONCE, pem(ROOT))
    assert chip.subject == "CN=GH100 1"
    without_root = {**said(), "certificates": pem(GPU, MIDDLE)}
    assert attested_by(without_root, NONCE, pem(ROOT)) == chip


def test_a_chip_is_the_same_though_its_firmware_has_another_key() -> None:
    """As NVIDIA names them: a chip's ROM signs the key of its firmware."""
    rom_key = new_key()
    rom = issue("GH100 A01 GSP BROM", rom_key, "GH100", MIDDLE_KEY, ca=True)
    keys: set[str] = set()
    for key in (new_key(), new_key()):
        firmware = issue(
            "GH100 A01 GSP FMC LF", key, "GH100 A01 GSP BROM", rom_key, ca=False
        )
        signed = attestation_of(NONCE, key, firmware, rom, MIDDLE)
        keys.add(attested_by(signed, NONCE, pem(ROOT)).key)
    assert len(keys) == 1
    other_key = new_key()
    other = issue("GH100 A01 GSP BROM", other_key, "GH100", MIDDLE_KEY, ca=True)
    key = new_key()
    firmware = issue(
        "GH100 A01 GSP FMC LF", key, "GH100 A01 GSP BROM", other_key, ca=False
    )
    signed = attestation_of(NONCE, key, firmware, other, MIDDLE)
    assert attested_by(signed, NONCE, pem(ROOT)).key not in keys


def base(content: bytes) -> str:
    """As a solver sends it."""
    return base64.b64encode(content).decode()


OTHER = new_key()
OWN_ROOT = issue("Root", OTHER, "Root", OTHER, ca=True)
FORGED = issue("GH100 1", OTHER, "GH100", OTHER, ca=False)
BY_GPU = issue("GH100 2", OTHER, "GH100 1", GPU_KEY, ca=False)
WORDS = bytes.fromhex(NONCE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"report": base(report(b"\x01" * 32))}, "another nonce"),
        ({"report": base(report(WORDS, OTHER))}, "not signed by its certificate"),
        ({"report": base(report(WORDS)[:-1] + b"\x00")}, "not signed by"),
        ({"report": base(b"short")}, "only 5 bytes"),
        ({"report": "?"}, "no base64"),
        ({"report": 7}, "no base64"),
        ({"certificates": "nonsense"}, "its certificates are none"),
        ({"certificates": None}, "its certificates are none"),
        ({"certificates": pem(FORGED, MIDDLE)}, "is not issued by CN=GH100"),
        ({"certificates": pem(GPU)}, "is not issued by CN=Root"),
        ({"certificates": pem(FORGED, OWN_ROOT)}, "is not issued by CN=Root"),
        ({"certificates": pem(BY_GPU, GPU, MIDDLE)}, "CN=GH100 1 may issue nothing"),
    ],
)
def test_what_anybody_else_signs_is_not(change: dict[str, Any], words: str) -> None:
    with pytest.raises(AttestationError, match=words):
        attested_by({**said(), **change}, NONCE, pem(ROOT))


def test_certificates_that_cannot_be_read_are_wrong_and_end_nothing_else() -> None:
    with pytest.raises(AttestationError, match="cannot be read: DuplicateExtension"):
        attested_by({**said(), "certificates": unreadable_chain()}, NONCE, pem(ROOT))


@pytest.mark.parametrize("nvml", [object(), type("Off", (Nvml,), {})()])
def test_a_driver_that_cannot_attests_nothing(nvml: Any) -> None:
    if isinstance(nvml, Nvml):  # the mode for confidential computing is off
        nvml.nvmlDeviceGetConfComputeGpuAttestationReport = lambda *_: 3
    assert attestation(nvml, None, WORDS) is None


def test_sizes_are_those_of_nvml() -> None:
    assert ctypes.sizeof(Report) == 4 * 3 + 32 + 0x2000 + 0x1000


GPU_SAID: dict[str, Any] = {"name": "NVIDIA H100 80GB HBM3", "memory_mb": 81559}


@pytest.mark.parametrize(
    ("attests", "root", "attested", "ok"),
    [
        (True, True, False, True),
        (True, True, True, True),
        (False, True, True, False),
        (False, True, False, None),
        (True, False, False, None),
    ],
)
def test_an_attestation_is_judged_where_there_is_a_root(
    attests: bool, root: bool, attested: bool, ok: bool | None
) -> None:
    gpu = {**GPU_SAID, "attestation": said()} if attests else GPU_SAID
    expected = Expected(
        "h100-80gb",
        inventory=True,
        attestation_root=pem(ROOT) if root else None,
        attested=attested,
    )
    findings = judge_claims({"inventory": [gpu]}, expected, 1.0, NONCE)
    assert {one.name: one.ok for one in findings}.get("attestation") is ok


def attestation_line(
    gpus: int,
    nonce: str = NONCE,
    earlier: dict[str, str] | None = None,
    **shared: str,
) -> tuple[bool | None, str]:
    """What comes of the attestation of so many GPUs, all of which show one chip."""
    expected = Expected(
        "h100-80gb",
        inventory=True,
        attestation_root=pem(ROOT),
        shared_chips=shared,
        earlier_chips=earlier or {},
    )
    gpu = {**GPU_SAID, "attestation": said()}
    findings = judge_claims({"inventory": [gpu] * gpus}, expected, 1.0, nonce)
    (line,) = [one for one in findings if one.name == "attestation"]
    return line.ok, line.expected


def test_one_chip_vouches_for_one_gpu_of_one_executor() -> None:
    key = attested_by(said(), NONCE, pem(ROOT)).key
    assert attestation_line(1)[0] is True
    assert attestation_line(2) == (False, "a chip for each GPU")
    assert attestation_line(1, **{key: "rival"}) == (
        False,
        "a chip of its own, not that of rival",
    )
    assert attestation_line(1, earlier={key: "rival"}) == (
        None,
        "a chip with which rival has not passed just before",
    )


def test_what_was_signed_before_the_answers_were_fixed_is_wrong() -> None:
    assert attestation_line(1, nonce="77" * 32)[0] is False
