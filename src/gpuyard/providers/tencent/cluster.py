"""The cluster's API, with a kubeconfig that is on disk only while it is read."""

import base64
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.connection import ClusterConnection
from gpuyard.providers.kubernetes.credentials import CredentialsError, from_kubeconfig
from gpuyard.providers.kubernetes.fields import Json, objects_at
from gpuyard.providers.tencent.api import TencentApi
from gpuyard.providers.tencent.config import (
    TencentConfig,
    kubeconfig_of,
    parsed_kubeconfig,
)

# The fields of a kubeconfig that can have a file name, or data in base64.
_FILE_FIELDS = (
    ("clusters", "cluster", "certificate-authority"),
    ("users", "user", "client-certificate"),
    ("users", "user", "client-key"),
)


class TencentCluster(KubernetesApi):
    """The API server of a TKE cluster."""

    def __init__(self, settings: TencentConfig, tencent: TencentApi) -> None:
        super().__init__(settings, settings.provider)
        self._tencent_settings = settings
        self._tencent = tencent

    async def _open(self) -> ClusterConnection:
        """See KubernetesApi; with Tencent's newest kubeconfig, unless one is given."""
        kubeconfig = await self._kubeconfig()
        named = f"The kubeconfig of {self._tencent_settings.cluster_id}"
        try:
            with _on_disk(kubeconfig) as path:
                credentials = await from_kubeconfig(
                    path, self._settings.context, self._settings.timeout_s
                )
                # These files are gone a moment later.
                return ClusterConnection(replace(credentials, stamps={}))
        except CredentialsError as error:
            raise self._unusable(named, str(error)) from None
        except (OSError, ValueError) as error:
            raise self._unusable(named, type(error).__name__) from None

    async def _kubeconfig(self) -> Json:
        given = self._tencent_settings.kubeconfig
        if given is not None:
            return parsed_kubeconfig(given)
        try:
            return kubeconfig_of(await self._tencent.kubeconfig())
        except ValueError as error:
            message = (
                "What Tencent gave as the kubeconfig of"
                f" {self._tencent_settings.cluster_id} {error}."
            )
            raise ProviderError(message, self._provider, "NOT_CONNECTED") from None


@contextmanager
def _on_disk(kubeconfig: Json) -> Generator[Path]:
    """The kubeconfig as a file in a private folder, which is removed at the end.

    Its data fields become files there too: the client would write them to a common
    folder and leave them until it exits.
    """
    with TemporaryDirectory(prefix="gpuyard-") as folder:
        for kind, part, name in _FILE_FIELDS:
            for number, item in enumerate(objects_at(kubeconfig, kind)):
                data = item.get(part, {}).pop(f"{name}-data", None)
                if data:
                    path = Path(folder, f"{name}-{number}")
                    item[part][name] = str(_written(path, base64.b64decode(data)))
        yield _written(Path(folder, "kubeconfig"), yaml.safe_dump(kubeconfig).encode())


def _written(path: Path, data: bytes) -> Path:
    with os.fdopen(
        os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb"
    ) as file:
        file.write(data)
    return path
