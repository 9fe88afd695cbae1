"""GPUs that attest themselves: a made chain of certificates, and reports that it signs."""

import base64
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


def new_key() -> Key:
    """A key on NVIDIA's curve."""
    return ec.generate_private_key(ec.SECP384R1())


def issue(name: str, key: Key, issuer: str, by: Key, *, ca: bool) -> x509.Certificate:
    """A certificate of `key`, signed by another."""
    builder = _builder(name, key, issuer)
    limits = x509.BasicConstraints(ca=ca, path_length=None)
    return builder.add_extension(limits, critical=True).sign(by, SHA384())


def _builder(name: str, key: Key, issuer: str) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=_name(issuer),
        subject_name=_name(name),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=datetime(2022, 1, 1, tzinfo=UTC),
        not_valid_after=datetime(9999, 12, 31, tzinfo=UTC),
    )


def unreadable_chain() -> str:
    """A chain whose second certificate has one extension twice."""
    key = new_key()
    builder = _builder("Mine", key, "Mine")
    for number in ("1.2.3.4", "1.2.3.5"):
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(number), b"x")
        builder = builder.add_extension(extension, critical=False)
    whole = builder.sign(key, SHA384()).public_bytes(Encoding.DER)
    twice = whole.replace(b"\x06\x03\x2a\x03\x05", b"\x06\x03\x2a\x03\x04")
    leaf = issue("Leaf", key, "Mine", key, ca=False)
    return pem(leaf, x509.load_der_x509_certificate(twice))


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


def attestation_of(
    nonce_hex: str, key: Key = GPU_KEY, *certificates: x509.Certificate
) -> dict[str, str]:
    """What a GPU says for a nonce; by default the one with the made chain."""
    signed = report(bytes.fromhex(nonce_hex), key)
    return {
        "certificates": pem(*(certificates or (GPU, MIDDLE))),
        "report": base64.b64encode(signed).decode(),
    }
