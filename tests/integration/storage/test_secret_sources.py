"""Secrets as files in a folder, as Kubernetes and Docker mount them."""

from pathlib import Path

import pytest

from gpuyard.config.settings import SecretSettings
from gpuyard.controller.secrets import Secrets
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.storage.secret_sources import (
    MAX_VALUE_BYTES,
    SecretMissingError,
    SecretSources,
    SecretUnavailableError,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """As Kubernetes does it: links to a folder that it can replace at once."""
    folder = tmp_path / "mounted"
    (folder / "..now").mkdir(parents=True)
    (folder / "..data").symlink_to("..now")
    for name, value in {"HF_TOKEN": b"from the folder\n", "SHARED": b"folder"}.items():
        (folder / "..now" / name).write_bytes(value)
        (folder / name).symlink_to(f"..data/{name}")
    return folder


@pytest.fixture
def sources(
    tmp_path: Path, mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> SecretSources:
    monkeypatch.setenv("SHARED", "variable")
    settings = SecretSettings(folder=mounted, environment=("SHARED",))
    return SecretSources(tmp_path / "store", settings)


async def test_a_file_is_a_secret_of_its_name(sources: SecretSources) -> None:
    assert await sources.value("HF_TOKEN") == "from the folder"
    assert await sources.value("SHARED") == "variable"
    found = {facts.name: facts.source for facts in sources.listing()}
    assert found == {"HF_TOKEN": "folder", "SHARED": "environment"}


async def test_a_file_that_is_replaced_gives_its_new_value(
    sources: SecretSources, mounted: Path
) -> None:
    (mounted / "..next").mkdir()
    (mounted / "..next" / "HF_TOKEN").write_text("newer")
    (mounted / "..data").unlink()
    (mounted / "..data").symlink_to("..next")
    assert await sources.value("HF_TOKEN") == "newer"


async def test_what_is_no_file_is_no_secret(
    sources: SecretSources, mounted: Path
) -> None:
    (mounted / "folder").mkdir()
    for name in ("folder", "absent"):
        with pytest.raises(SecretMissingError):
            await sources.value(name)


@pytest.mark.parametrize("content", [b"", b"a\0b", b"\xff", b"x" * 70_000])
async def test_a_file_that_no_variable_can_hold_is_told_without_its_text(
    sources: SecretSources, mounted: Path, content: bytes
) -> None:
    (mounted / "BAD").write_bytes(content)
    with pytest.raises(SecretUnavailableError, match=r"secrets\.folder gave no"):
        await sources.value("BAD")


async def test_the_longest_value_is_given_whole(
    sources: SecretSources, mounted: Path
) -> None:
    (mounted / "LONG").write_bytes(b"x" * MAX_VALUE_BYTES + b"\n")
    assert len(await sources.value("LONG")) == MAX_VALUE_BYTES


async def test_a_user_has_its_own_secret_before_the_shared_one(
    tmp_path: Path, mounted: Path
) -> None:
    sources = SecretSources(tmp_path / "store", SecretSettings(folder=mounted))
    secrets = Secrets(sources, reserved=frozenset({"SHARED"}))
    sources.store.put("ana/HF_TOKEN", "of ana", 1.0)

    async def given(name: str, user: str | None) -> str:
        asked = JobSpec(command=("true",), secrets={"A": name})
        spec = asked.model_copy(update={"user": user})
        found = await secrets.values(f"attempt_{user}", spec)
        hidden = secrets.hide(f"attempt_{user}", found["A"])
        assert hidden == "*" * len(found["A"]) or len(found["A"]) < 8
        return found["A"]

    assert await given("HF_TOKEN", "ana") == "of ana"
    assert await given("HF_TOKEN", "ben") == "from the folder"
    assert await given("HF_TOKEN", None) == "from the folder"
    facts = {(one.name, one.owner): one for one in sources.listing()}
    assert facts[("HF_TOKEN", "ana")].used_at
    # What is the server's own is no job's.
    for user in ("ben", None):
        with pytest.raises(SecretMissingError):
            await given("SHARED", user)
    sources.store.put("ben/SHARED", "of ben", 2.0)
    assert await given("SHARED", "ben") == "of ben"
    reserved = {(one.name, one.owner) for one in secrets.listing() if one.reserved}
    assert reserved == {("SHARED", None)}
    with pytest.raises(InvalidInputError, match="no secret 'SHARED'"):
        await secrets.check({"A": "SHARED"}, "ana")
