"""The instance's key: made once, for its owner only, and handed out in two forms."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.keys import instance_key, public_hex, read_public
from tests.unit.verification.bundles import public_pem


def test_it_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    key = instance_key(tmp_path / "verification")
    assert public_hex(instance_key(tmp_path / "verification")) == public_hex(key)
    (file,) = (tmp_path / "verification").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_all_who_make_it_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        keys = set(pool.map(lambda _: public_hex(instance_key(tmp_path)), range(64)))
    assert len(keys) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["key.pem"]


def test_the_public_part_is_read_in_both_forms(tmp_path: Path) -> None:
    key = instance_key(tmp_path)
    forms = (
        public_hex(key),
        public_hex(key).upper(),
        public_pem(key),
        f"\n{public_pem(key)}\n",
    )
    assert {public_hex(read_public(form)) for form in forms} == {public_hex(key)}
    assert "PRIVATE" not in public_pem(key)


def test_a_key_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    instance_key(tmp_path)
    (tmp_path / "key.pem").chmod(0o640)
    with pytest.raises(
        InvalidInputError, match=r"key\.pem: may be read by others.*chmod 600"
    ):
        instance_key(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    ],
)
def test_a_file_that_holds_no_key_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key.pem").write_bytes(content)
    (tmp_path / "key.pem").chmod(0o600)
    with pytest.raises(InvalidInputError, match="is no Ed25519 key in PEM"):
        instance_key(tmp_path)
    assert (tmp_path / "key.pem").read_bytes() == content


def test_a_key_of_another_kind_signs_nothing(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1())
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "key.pem").write_bytes(other.private_bytes(*form))
    (tmp_path / "key.pem").chmod(0o600)
    with pytest.raises(InvalidInputError, match="is no Ed25519 key"):
        instance_key(tmp_path)
    public = other.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with pytest.raises(InvalidInputError, match="no public Ed25519 key"):
        read_public(public.decode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "zz" * 32,
        "ab" * 31,
        "ab" * 33,
        "-----BEGIN PUBLIC KEY-----",
        "é" * 64,
    ],
)
def test_what_is_no_public_key(text: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"^instance: is .* no public Ed25519 key \(give its 64"
    ):
        read_public(text, "instance")
