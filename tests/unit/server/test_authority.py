"""The authority of an instance signs for whom the instance says, and for nobody else."""

import ssl
from stat import S_IMODE
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpuyard.config.paths import Home
from gpuyard.controller.joining_door import InstanceDoor
from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.server.authority import Authority
from gpuyard.server.leading import Leading
from gpuyard.server.shared_authority import authority_in


def request(key, name="", **more):
    subject = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    for names in more.values():
        builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
    csr = builder.sign(key, hashes.SHA256())
    return csr.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture
def authority(tmp_path):
    return Authority.of(tmp_path / "authority")


@pytest.fixture(scope="module")
def key():
    return ec.generate_private_key(ec.SECP256R1())


def test_a_certificate_names_the_node_and_is_for_clients_only(authority, key):
    certificate = authority.sign_for_node(request(key), "node_7")
    (name,) = certificate.subject
    assert name.value == "node_7"
    extensions = certificate.extensions
    uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    certificate.verify_directly_issued_by(
        x509.load_pem_x509_certificate(authority.pem.encode())
    )


def test_certificates_are_valid_whatever_a_clock_says(authority, key):
    made = authority.sign_for_node(request(key), "node_7")
    own = x509.load_pem_x509_certificate(authority.pem.encode())
    for certificate in (made, own):
        assert certificate.not_valid_before_utc.year == 1970
        assert certificate.not_valid_after_utc.year == 9999


def test_the_key_is_kept_and_only_its_owner_reads_it(authority, tmp_path):
    file = tmp_path / "authority" / "authority.pem"
    assert S_IMODE(file.stat().st_mode) == 0o600
    assert S_IMODE(file.parent.stat().st_mode) == 0o700
    authority.server_context(for_agents=True)
    assert [each.name for each in file.parent.iterdir()] == ["authority.pem"]
    assert Authority.of(file.parent).fingerprint == authority.fingerprint


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda key: request(key, "gpuyard-server"), "asks to be gpuyard-server"),
        (lambda key: request(key, sans=[x509.DNSName("a")]), "asks to be"),
        (lambda _: request(rsa.generate_private_key(65537, 2048)), "elliptic"),
        (lambda _: "nonsense", "no certificate request"),
    ],
)
def test_a_request_that_wishes_more_is_refused(authority, key, make, why):
    with pytest.raises(RefusedError, match=why):
        authority.sign_for_node(make(key), "node_7")


def test_agents_need_a_certificate_and_machines_that_join_do_not(authority):
    agents = authority.server_context(for_agents=True)
    machines = authority.server_context(for_agents=False)
    assert agents.verify_mode is ssl.CERT_REQUIRED
    assert machines.verify_mode is ssl.CERT_NONE
    assert agents.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("listens", [True, False])
def test_who_shares_a_ledger_needs_the_key_that_it_names(tmp_path, authority, listens):
    own = tmp_path / "authority"
    assert authority_in(own, "", listens=listens)
    found = authority_in(own, authority.fingerprint, listens=listens)
    assert found and found.fingerprint == authority.fingerprint
    with pytest.raises(InvalidInputError, match=r"server\.agents_listen.*has another"):
        authority_in(own, "0" * 64, listens=listens)
    with pytest.raises(InvalidInputError, match="has none"):
        authority_in(tmp_path / "none", authority.fingerprint, listens=listens)
    assert not (tmp_path / "none").exists()


def test_a_key_is_made_only_for_who_listens(tmp_path):
    assert authority_in(tmp_path / "none", "", listens=False) is None
    assert not (tmp_path / "none").exists()
    assert authority_in(tmp_path / "made", "", listens=True)
    assert (tmp_path / "made").exists()


def instance(tmp_path: Any, agents_listen: str | None) -> Any:
    server = SimpleNamespace(agents_listen=agents_listen, agents_host=None)
    return SimpleNamespace(
        election=None,
        home=Home(tmp_path),
        settings=SimpleNamespace(server=server),
        controller=SimpleNamespace(
            core=SimpleNamespace(listeners=[]),
            reports=SimpleNamespace(on_progress=None),
            door=InstanceDoor(),
        ),
        stream=SimpleNamespace(publish=None, publish_progress=None),
    )


async def lead(app_state: Any) -> None:
    class StartedError(Exception):
        pass

    async def start() -> None:
        raise StartedError

    app_state.controller.start = start
    with pytest.raises(StartedError):
        await Leading(cast("Any", app_state)).open()


@pytest.mark.anyio
async def test_a_key_that_cannot_be_read_keeps_only_who_listens_from_starting(tmp_path):
    folder = Home(tmp_path).authority
    folder.mkdir()
    (folder / "authority.pem").write_text("half of a k")
    await lead(instance(tmp_path, None))
    with pytest.raises(InvalidInputError, match="which cannot be read"):
        await lead(instance(tmp_path, "127.0.0.1:7433"))
