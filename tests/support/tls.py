"""A door with TLS in front of a plain server, which opens only to who has a certificate
of its own authority, or to everybody.
"""

import asyncio
import base64
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Door:
    """`address` and what a client needs there, as kubeconfigs hold it (base64 of
    PEM).
    """

    address: str
    authority: str
    certificate: str
    key: str


@contextmanager
def tls_door(address: str, folder: Path, *, mutual: bool = True) -> Iterator[Door]:
    """A door to `address`, closed afterwards; `mutual`: clients need a certificate,
    too.
    """
    make_certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "authority.pem")
    context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tls-door", daemon=True)
    thread.start()
    port = asyncio.run_coroutine_threadsafe(_serve(address, context), loop).result(10)
    parts = [
        base64.b64encode((folder / name).read_bytes()).decode()
        for name in ("authority.pem", "client.pem", "client.key")
    ]
    try:
        yield Door(f"https://127.0.0.1:{port}", *parts)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


def make_certificates(folder: Path) -> None:
    """Write `authority.pem`, and of `server` and `client` NAME.pem and NAME.key, which
    it has signed for 127.0.0.1.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("authority", authority_key, None, authority_key)
    for name in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        (folder / f"{name}.pem").write_bytes(
            _pem(_certificate(name, key, authority, authority_key))
        )
        (folder / f"{name}.key").write_bytes(_private(key))
    (folder / "authority.pem").write_bytes(_pem(authority))


async def _serve(address: str, context: ssl.SSLContext) -> int:
    target = urlsplit(address)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    return int(server.sockets[0].getsockname()[1])


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True
        )
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
    )
    if issuer is None:
        use = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(use, critical=True)
    return builder.sign(signer, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
