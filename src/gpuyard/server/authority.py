"""The certificate authority of an instance: signs for its server, and for the machines
that join it.
"""

import base64
import hashlib
import hmac
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpuyard.domain.errors import RefusedError
from gpuyard.domain.joining import CODE_BYTES, SERVER_NAME

# A certificate ends when its machine is removed, and whatever the clock of a machine
# says, it is valid until then. The second is how RFC 5280 says "without an end".
_ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
_FOR_EVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_NODE_URI = "gpuyard:node:"


class Authority:
    """Signs certificates. Key and certificate are in the folder `folder`."""

    def __init__(
        self,
        folder: Path,
        key: ec.EllipticCurvePrivateKey,
        certificate: x509.Certificate,
    ) -> None:
        self._folder = folder
        self._key = key
        self._certificate = certificate
        self.pem = _pem(certificate)
        self.fingerprint = fingerprint_of(certificate)

    @classmethod
    def of(cls, folder: Path) -> Self:
        """That of a folder; it is made when there is none. OSError, ValueError."""
        file = folder / "authority.pem"
        if not file.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(file, _new_authority())
        content = file.read_bytes()
        key = serialization.load_pem_private_key(content, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{file} holds no key of an elliptic curve")
        return cls(folder, key, x509.load_pem_x509_certificate(content))

    def secret_for(self, purpose: str) -> str:
        """A secret that only who has the key can make: the same for each call."""
        key = hashlib.sha256(
            b"gpuyard secrets\n" + _private(self._key).encode()
        ).digest()
        made = hmac.digest(key, purpose.encode(), "sha256")
        return base64.urlsafe_b64encode(made[:CODE_BYTES]).decode()

    def sign_for_node(self, csr_pem: str, node_id: str) -> x509.Certificate:
        """The certificate of the machine `node_id`. RefusedError if the request cannot
        be read, was not signed with its own key, or asks to be somebody.
        """
        csr = _read_request(csr_pem)
        key = csr.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        uri = x509.UniformResourceIdentifier(f"{_NODE_URI}{node_id}")
        use = ExtendedKeyUsageOID.CLIENT_AUTH
        return self._issue(node_id, key, use, uri)

    def server_context(self, *, for_agents: bool) -> ssl.SSLContext:
        """TLS of a listener: for agents, which need a certificate of this authority, or
        for machines that have none yet.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        if for_agents:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=self.pem)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._issue(
            SERVER_NAME,
            key.public_key(),
            ExtendedKeyUsageOID.SERVER_AUTH,
            x509.DNSName(SERVER_NAME),
        )
        # Python can load keys only from files.
        file = self._folder / f"listener-{os.getpid()}.pem"
        try:
            _write(file, _pem(certificate) + _private(key))
            context.load_cert_chain(file)
        finally:
            file.unlink(missing_ok=True)
        return context

    def _issue(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        use: x509.ObjectIdentifier,
        alternative: x509.GeneralName,
    ) -> x509.Certificate:
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(
            self._key.public_key()
        )
        builder = _builder(_name(name), self._certificate.subject, key)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([alternative]), critical=False
        )
        builder = builder.add_extension(signer, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def fingerprint_of(certificate: x509.Certificate) -> str:
    """The SHA-256 of a certificate, in hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def fingerprint_of_der(certificate: bytes) -> str:
    """The SHA-256 of a certificate as TLS has it, in hex."""
    return hashlib.sha256(certificate).hexdigest()


def pem_of(certificate: x509.Certificate) -> str:
    """The certificate as text."""
    return _pem(certificate)


def _read_request(csr_pem: str) -> x509.CertificateSigningRequest:
    try:
        csr = x509.load_pem_x509_csr(csr_pem.encode())
        signed = csr.is_signature_valid
        key = csr.public_key()
        names = [attribute.value for attribute in csr.subject]
        wishes = [extension.oid.dotted_string for extension in csr.extensions]
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension):
        raise RefusedError("That is no certificate request.") from None
    if not signed or not isinstance(key, ec.EllipticCurvePublicKey):
        raise RefusedError(
            "The certificate request is not signed with its own key of an elliptic"
            " curve."
        )
    if names or wishes:
        wished = ", ".join(str(wish) for wish in [*names, *wishes])
        raise RefusedError(
            f"The certificate request asks to be {wished}; who a machine is, the"
            " instance says."
        )
    return csr


def _new_authority() -> str:
    """A new key and its certificate, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("gpuyard")
    use = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(name, name, key.public_key())
    builder = builder.add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(use, critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return _pem(builder.sign(key, hashes.SHA256())) + _private(key)


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
    )
    return builder.not_valid_before(_ALWAYS).not_valid_after(_FOR_EVER)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _write(path: Path, text: str) -> None:
    """Write a file that only our user reads, whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
    ) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
