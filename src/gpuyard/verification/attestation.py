"""Judges NVIDIA's attestations: who signed a report, and for which nonce.

A report is the request that the driver sent to the GPU (SPDM's GET_MEASUREMENTS, 37
bytes, with the nonce), the GPU's answer, and a signature of both (ECDSA with SHA-384
on P-384, r and s of 48 bytes). What the measurements say is not judged: that takes
NVIDIA's reference values. Certificates of GPUs do not expire, so dates are not judged.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from gpuyard.domain.errors import InvalidInputError

_REQUEST_BYTES = 37
_NONCE = slice(4, 36)
_NUMBER_BYTES = 48
_MOST_CERTIFICATES = 10
# In the names of the certificates that belong to one chip: that of its ROM, which never
# changes, and below it that of its firmware, which may.
_OF_ONE_CHIP = " GSP "


class AttestationError(Exception):
    """An attestation shows nothing; the text says why."""


def read_root(text: str) -> x509.Certificate:
    """The certificate of the authority that all GPUs' certificates come from.

    Raises InvalidInputError.
    """
    try:
        return x509.load_pem_x509_certificate(text.encode())
    except ValueError as error:
        raise InvalidInputError.of(
            "verification.attestation_root",
            f"is no certificate in PEM: {error}",
            "download NVIDIA's device identity root, and name its file",
        ) from None


@dataclass(frozen=True, slots=True)
class AttestedChip:
    """Who has signed an attestation.

    `subject`: the name in the certificate that the report is signed by. `key`: what
    tells the chip from all others, the SHA-256 (hex) of a public key of its own.
    """

    subject: str
    key: str


def attested_by(said: object, nonce_hex: str | None, root: str) -> AttestedChip:
    """Check what a GPU attests; returns the chip.

    `said`: `{"certificates": PEM, "report": base64}`. `nonce_hex`: what the report has
    to be for; None to look at the certificates only. Raises AttestationError.
    """
    if not isinstance(said, Mapping):
        raise AttestationError("nothing is attested")
    trusted = read_root(root)
    try:
        return _judged(cast("Mapping[str, Any]", said), nonce_hex, trusted)
    except AttestationError:
        raise
    except Exception as error:  # noqa: BLE001  # whoever made them chose what is raised
        why = f"{type(error).__name__}: {error}"
        raise AttestationError(f"its certificates cannot be read: {why}") from None


def _judged(
    attestation: Mapping[str, Any], nonce_hex: str | None, trusted: x509.Certificate
) -> AttestedChip:
    chain = _chain(attestation.get("certificates"))
    # A chain may end with the root itself, which has signed itself.
    issuers = [*chain[1:], trusted]
    for certificate, issuer in zip(chain, issuers, strict=True):
        _check_issued(certificate, issuer)
    if nonce_hex is not None:
        report = _report(attestation.get("report"))
        _check_report(chain[0], report, bytes.fromhex(nonce_hex))
    return AttestedChip(chain[0].subject.rfc4514_string(), _key_of_chip(chain))


def _key_of_chip(chain: list[x509.Certificate]) -> str:
    """What tells a chip from others: the highest key of the chain that is its own."""
    own = chain[0]
    for certificate in chain[1:]:
        if not _is_of_one_chip(certificate):
            break
        own = certificate
    key = own.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return sha256(key).hexdigest()


def _is_of_one_chip(certificate: x509.Certificate) -> bool:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return any(_OF_ONE_CHIP in str(name.value) for name in names)


def _chain(said: object) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(str(said).encode())
    except ValueError as error:
        raise AttestationError(f"its certificates are none: {error}") from None
    if len(found) > _MOST_CERTIFICATES:
        raise AttestationError(f"it has {len(found)} certificates")
    return found


def _check_issued(certificate: x509.Certificate, issuer: x509.Certificate) -> None:
    subject = certificate.subject.rfc4514_string()
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        authority = issuer.subject.rfc4514_string()
        raise AttestationError(f"{subject} is not issued by {authority}") from None
    if certificate == issuer:
        return
    try:
        basic = issuer.extensions.get_extension_for_class(x509.BasicConstraints)
        may_issue = basic.value.ca
    except (x509.ExtensionNotFound, ValueError):
        may_issue = False
    if not may_issue:
        raise AttestationError(f"{issuer.subject.rfc4514_string()} may issue nothing")


def _report(said: Any) -> bytes:
    try:
        report = base64.b64decode(said, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise AttestationError("its report is no base64") from None
    if len(report) <= _REQUEST_BYTES + 2 * _NUMBER_BYTES:
        raise AttestationError(f"its report has only {len(report)} bytes")
    return report


def _check_report(leaf: x509.Certificate, report: bytes, nonce: bytes) -> None:
    if not hmac.compare_digest(report[_NONCE], nonce):
        raise AttestationError("its report is for another nonce")
    key = leaf.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise AttestationError("its key is of no elliptic curve")
    signed = report[: -2 * _NUMBER_BYTES]
    numbers = report[-2 * _NUMBER_BYTES :]
    r = int.from_bytes(numbers[:_NUMBER_BYTES], "big")
    s = int.from_bytes(numbers[_NUMBER_BYTES:], "big")
    try:
        key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(SHA384()))
    except InvalidSignature:
        raise AttestationError("its report is not signed by its certificate") from None
