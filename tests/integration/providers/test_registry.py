"""Providers are found by entry point: ours, third parties', and those that cannot be
used.
"""

import re
import sys
import textwrap
from importlib import import_module

import pytest

from gpuyard import providers
from gpuyard.config.settings import StorageSettings
from gpuyard.domain.errors import InvalidInputError, ProviderError
from gpuyard.providers import registry
from gpuyard.providers.local import LocalProvider

CLOUD = """
    from gpuyard.providers.base import GpuProviderInterface

    class Cloud(GpuProviderInterface):
        PROVIDER_NAME = "cloud"
        async def submit_job(self, job_config): ...
        async def get_job_status(self, job_id): ...
        async def cancel_job(self, job_id): ...
        async def get_job_logs(self, job_id, lines=None): ...
        async def get_cost_info(self, job_id): ...
        async def list_available_gpus(self): ...
        async def health_check(self): ...
    """


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a distribution that has the module `name` and an entry point of that
    name to what is in it.
    """

    def install(name, code, what="Cloud"):
        (tmp_path / f"{name}_module.py").write_text(textwrap.dedent(code))
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(
            f"[gpuyard.providers]\n{name} = {name}_module:{what}\n"
        )
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_local_is_installed(tmp_path):
    assert "local" in registry.names()
    assert isinstance(registry.load("local", {"home": tmp_path}), LocalProvider)


def test_a_third_party_is_found(install):
    install("thirdcloud", CLOUD)
    assert "thirdcloud" in registry.names()
    provider = registry.load("thirdcloud", {"key": "value"})
    assert type(provider).__name__ == "Cloud"
    assert provider.config == {"key": "value"}


def test_only_who_asks_for_it_is_told_of_the_storage(install):
    """Most read their configuration strictly, and would refuse a field they do not
    know.
    """
    storage = StorageSettings(url="s3://bucket")
    install("thirdcloud", CLOUD)
    install(
        "storing",
        CLOUD.replace('NAME = "cloud"', 'NAME, wants_storage = "cloud", True'),
    )
    assert registry.load("thirdcloud", {"key": "value"}, storage).config == {
        "key": "value"
    }
    assert registry.load("storing", {"key": "value"}, storage).config == {
        "key": "value",
        "storage": storage,
    }


@pytest.mark.parametrize("name", ["docker", "slurm"])
def test_those_that_fetch_checkpoints_take_it(name, tmp_path):
    wrong = StorageSettings(url="s4://nowhere")
    with pytest.raises(InvalidInputError, match="is no place for blobs"):
        registry.load(name, {"home": str(tmp_path)}, wrong)


@pytest.mark.parametrize(
    ("name", "offered"), [("locla", "local"), ("Local", "local"), ("zzz", "local")]
)
def test_an_unknown_provider_is_refused_with_the_nearest_names(name, offered):
    with pytest.raises(InvalidInputError) as caught:
        registry.load(name, {})
    (fault,) = caught.value.faults
    assert fault.field == "provider"
    assert repr(name) in fault.fault
    assert offered in fault.remedy


@pytest.mark.parametrize(
    ("name", "code", "what", "why"),
    [
        (
            "needy",
            "import a_library_that_is_not_there",
            "Cloud",
            "a_library_that_is_not_there",
        ),
        ("mistyped", CLOUD, "Clod", "Clod"),
        ("broken", "class Cloud(:", "Cloud", "invalid syntax"),
        ("other", "Cloud = 7", "Cloud", "is no provider"),
        ("another", "class Cloud: ...", "Cloud", "is no provider"),
    ],
)
def test_a_provider_that_cannot_be_loaded_says_why(install, name, code, what, why):
    install(name, code, what)
    with pytest.raises(ProviderError, match=why) as caught:
        registry.load(name, {})
    assert (caught.value.provider, caught.value.error_code) == (name, "IMPORT")


@pytest.mark.parametrize(
    ("name", "kind", "module"),
    [
        ("alibaba", "AlibabaCloudAdapter", "alibabacloud_tea_openapi"),
        ("docker", "DockerProvider", "docker"),
        ("kubernetes", "KubernetesProvider", "kubernetes_asyncio"),
        ("tencent", "TencentCloudAdapter", "tencentcloud"),
    ],
)
def test_an_extra_that_is_missing_is_named(monkeypatch, name, kind, module):
    package = f"gpuyard.providers.{name}"
    for loaded in [each for each in sys.modules if each.startswith(package)]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    remedy = re.escape(f"pip install 'gpuyard[{name}]'")
    with pytest.raises(ImportError, match=remedy):
        getattr(providers, kind)
    with pytest.raises(ImportError, match=remedy):
        import_module(f"{package}.provider")
    with pytest.raises(ProviderError, match=remedy):
        registry.load(name, {})


def test_the_package_has_no_other_names():
    with pytest.raises(ImportError, match="AzureProvider"):
        exec("from gpuyard.providers import AzureProvider")
