"""NVIDIA's attestation with a made chain of certificates: what a GPU signs is accepted,
and what anybody else signs is not. No real GPU has been asked.
"""

import base64
import ctypes
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from gpuyard.verification.attestation import AttestationError, attested_by
from gpuyard.verification.claims import Expected, judge_claims
from gpuyard.verification.solver.attestation import Report, attestation

NONCE = "5a" * 32
Key = ec.EllipticCurvePrivateKey


def new_key() -> Key:
    """A key on NVIDIA's curve."""
    return ec.generate_private_key(ec.SECP384R1())


def issue(name: str, key: Key, issuer: str, by: Key, *, ca: bool) -> x509.Certificate:
    """A certificate of `key`, signed by another."""
    builder = x509.CertificateBuilder(
        issuer_name=_name(issuer),
        subject_name=_name(name),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=datetime(2022, 1, 1, tzinfo=UTC),
        not_valid_after=datetime(9999, 12, 31, tzinfo=UTC),
    )
    limits = x509.BasicConstraints(ca=ca, path_length=None)
    return builder.add_extension(limits, critical=True).sign(by, SHA384())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def pem(*certificates: x509.Certificate) -> str:
    """Certificates as text."""
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in certificates)


ROOT_KEY = new_key()
MIDDLE_KEY = new_key()
GPU_KEY = new_key()
ROOT = issue("Root", ROOT_KEY, "Root", ROOT_KEY, ca=True)
MIDDLE = issue("GH100", MIDDLE_KEY, "Root", ROOT_KEY, ca=True)
GPU = issue("GH100 1", GPU_KEY, "GH100", MIDDLE_KEY, ca=False)


def report(nonce: bytes, key: Key = GPU_KEY) -> bytes:
    """A request with its nonce, an answer, and a signature of both."""
    signed = b"\x11\xe0\x01\xff" + nonce + b"\x00" + b"measurements" * 20
    r, s = decode_dss_signature(key.sign(signed, ec.ECDSA(SHA384())))
    return signed + r.to_bytes(48, "big") + s.to_bytes(48, "big")


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
    assert attested_by(said(), NONCE, pem(ROOT)) == "CN=GH100 1"
    without_root = {**said(), "certificates": pem(GPU, MIDDLE)}
    assert attested_by(without_root, NONCE, pem(ROOT)) == "CN=GH100 1"


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
        nonce=NONCE,
        attestation_root=pem(ROOT) if root else None,
        attested=attested,
    )
    findings = judge_claims({"inventory": [gpu]}, expected, 1.0)
    assert {one.name: one.ok for one in findings}.get("attestation") is ok
