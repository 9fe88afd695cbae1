"""A private certificate authority for one hub and the solvers it expects."""

import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

# The name in the hub's certificate. Solvers check this name and not the address.
HUB = "service"
# How far the clocks of solvers may be wrong when they check the hub's certificate.
_SKEW = timedelta(days=1)
_LIFE = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: str
    key: str


class HubAuthority:
    """Signs certificates. Its key is kept in memory only, as long as its hub runs."""

    def __init__(
        self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> None:
        self._key = key
        self._certificate = certificate
        self.pem = _pem(certificate)

    @classmethod
    def create(cls) -> Self:
        """Make a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        name = _name("gpuyard verification")
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
        builder = _builder(name, name, key, now - _SKEW, now + _LIFE)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        builder = builder.add_extension(use, critical=True)
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    def for_hub(self) -> KeyPair:
        """Issue the hub's certificate."""
        now = datetime.now(UTC)
        return self._issue(
            HUB, ExtendedKeyUsageOID.SERVER_AUTH, now - _SKEW, now + _LIFE
        )

    def for_solver(self, check_id: str, valid_s: float) -> KeyPair:
        """Issue a certificate for the solver of one check, valid for `valid_s`."""
        now = datetime.now(UTC)
        # Certificates have whole seconds only, so the first one counts as over.
        until = now + timedelta(seconds=valid_s)
        return self._issue(
            check_id, ExtendedKeyUsageOID.CLIENT_AUTH, min(now, until) - _SKEW, until
        )

    def server_context(self) -> ssl.SSLContext:
        """The TLS context of a server that accepts only these solvers."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.pem)
        # No solver reconnects, so none needs a session ticket.
        context.num_tickets = 0
        mine = self.for_hub()
        # Python can load keys only from files.
        with tempfile.NamedTemporaryFile("w", prefix="gpuyard-") as file:
            file.write(mine.certificate + mine.key)
            file.flush()
            context.load_cert_chain(Path(file.name))
        return context

    def _issue(
        self, name: str, use: x509.ObjectIdentifier, start: datetime, end: datetime
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._certificate.subject, key, start, end)
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(
            self._key.public_key()
        )
        builder = builder.add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        builder = builder.add_extension(names, critical=False).add_extension(
            signer, critical=False
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return KeyPair(_pem(certificate), secret.decode())


def _builder(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
    )
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(start).not_valid_after(end)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
