"""Joins this machine to an instance: makes a key, and gets a certificate for it.

The first connection trusts nobody and says nothing: it only fetches the certificate of
the instance's authority. If that has the fingerprint of the invitation, the second one
relies on it, and shows the code.
"""

import hashlib
import socket
import ssl
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedRWPair
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from gpuyard import __version__
from gpuyard.config.joined import (
    Membership,
    read_membership,
    this_machine,
    write_membership,
)
from gpuyard.config.paths import Home
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    RefusedError,
    UnreachableError,
)
from gpuyard.domain.joining import (
    SERVER_NAME,
    JoinAnswer,
    JoinRequest,
    code_parts,
)

_OPEN_S = 10.0
_LARGEST = 1 << 16
_LONGEST_CODE = 1 << 10
_object = TypeAdapter(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Door:
    """Where machines ask to join."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Door":
        """The door of a URL; InvalidInputError."""
        try:
            parts = urlsplit(url)
            if parts.scheme == "https" and parts.hostname and parts.port:
                return cls(parts.hostname, parts.port)
        except ValueError:
            pass
        raise InvalidInputError.of(
            "URL",
            f"is {url!r}",
            "copy the whole line that `gpuyard nodes invite` prints: gpuyard join"
            " https://HOST:PORT CODE",
        )


def code_in(file: str, typed: str | None) -> str:
    """The code of an invitation: the first line of a file, or of standard input (`-`).
    `typed`: that of the command line, where there must be none. InvalidInputError.
    """
    field = "--code-file"
    if typed is not None:
        fault = "comes with a CODE on the command line"
        raise InvalidInputError.of(field, fault, "give one of the two")
    is_input = file == "-"
    try:
        # The input stays open: else a file of the agent that follows took its place.
        with open(0 if is_input else file, "rb", closefd=not is_input) as source:
            said = source.readline(_LONGEST_CODE).strip()
    except OSError as error:
        fault = f"{file} cannot be read: {error.strerror or error}"
        remedy = "name a file that holds the code of an invitation"
        raise InvalidInputError.of(field, fault, remedy) from None
    if not said:
        remedy = "write the code of an invitation into it"
        raise InvalidInputError.of(field, f"{file} is empty", remedy)
    return said.decode(errors="replace")


def join(home: Home, url: str, code: str) -> Membership:
    """Join; returns who this machine is now.

    InvalidInputError, UnreachableError; RefusedError if this home has joined before or
    has a server, or if the instance does not take it.
    """
    door = Door.of(url)
    fingerprint, secret = code_parts(code)
    _refuse_used_home(home)
    home.create()
    authority = _authority_of(door, fingerprint)
    key, csr = _new_key()
    request = JoinRequest(
        secret=secret, csr=csr, host=socket.gethostname(), version=__version__
    )
    answer = _asked(door, authority, request)
    membership = Membership(
        door.host, answer.port, answer.node_id, answer.name, this_machine()
    )
    write_membership(
        home, membership, authority=authority, certificate=answer.certificate + key
    )
    return membership


def _asked(door: Door, authority: str, request: JoinRequest) -> JoinAnswer:
    """What the instance answers; RefusedError if it does not take this machine."""
    with _connected(door, _trusting(authority)) as line:
        _read(door, line)
        try:
            line.write(request.model_dump_json().encode() + b"\n")
            line.flush()
        except OSError as error:
            raise _not_reached(door, error) from None
        body = _read(door, line)
    if "refused" in body:
        raise RefusedError(str(body["refused"]))
    try:
        return JoinAnswer.model_validate(body)
    except ValidationError:
        raise _no_instance(door) from None


def _refuse_used_home(home: Home) -> None:
    known = read_membership(home)
    if known:
        raise RefusedError(
            f"{home.root} has joined {known.host} already, as {known.name}.",
            "`gpuyard join` without more starts its agent, `gpuyard join --foreground`"
            " without systemd; for another instance, name another $GPUYARD_HOME.",
        )
    if home.ledger.exists() or home.server.exists():
        raise RefusedError(
            f"{home.root} is the home of a server.",
            "Name another home for the machine that joins, such as"
            " GPUYARD_HOME=~/.gpuyard-node.",
        )


def _authority_of(door: Door, fingerprint: str) -> str:
    """The certificate of the instance's authority, in PEM. RefusedError if it is
    another's.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with _connected(door, context) as line:
        pem = str(_read(door, line).get("authority"))
    try:
        shown = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError:
        shown = ""
    if shown != fingerprint:
        raise RefusedError(
            f"{door.host}:{door.port} is not the instance that has invited this"
            " machine: its authority has another fingerprint.",
            "Somebody may be in between, or the invitation is from another instance."
            " Nothing was sent.",
        )
    return pem


def _trusting(authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    return context


@contextmanager
def _connected(door: Door, context: ssl.SSLContext) -> Generator[BufferedRWPair]:
    """A connection to the door, on which lines are said; UnreachableError."""
    with ExitStack() as stack:
        try:
            plain = socket.create_connection((door.host, door.port), _OPEN_S)
            stack.enter_context(plain)
            tls = context.wrap_socket(plain, server_hostname=SERVER_NAME)
            stack.enter_context(tls)
            line = stack.enter_context(tls.makefile("rwb"))
        except OSError as error:
            raise _not_reached(door, error) from None
        yield line


def _read(door: Door, line: BufferedRWPair) -> dict[str, Any]:
    """The next line, a JSON object. UnreachableError if nothing or something else
    comes.
    """
    try:
        said = line.readline(_LARGEST)
    except OSError as error:
        raise _not_reached(door, error) from None
    try:
        return _object.validate_json(said)
    except ValidationError:
        raise _no_instance(door) from None


def _no_instance(door: Door) -> GpuyardError:
    return UnreachableError(
        f"What answers at {door.host}:{door.port} is no gpuyard that expects machines.",
        "Copy the whole line that `gpuyard nodes invite` prints; is the server of a"
        " version near to this one?",
    )


def _not_reached(door: Door, error: Exception) -> GpuyardError:
    return UnreachableError(
        f"{door.host}:{door.port} does not answer: {error}.",
        "Can this machine reach it, and is the invitation still good? The server"
        " listens there only while one is open.",
    )


def _new_key() -> tuple[str, str]:
    """A new key and the request for its certificate, both in PEM. The request names
    nobody: who this machine is, the instance says.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    csr = request.sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    encoded = csr.public_bytes(serialization.Encoding.PEM)
    return secret.decode(), encoded.decode()
