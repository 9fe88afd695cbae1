"""The cluster's own API, with a kubeconfig that is on disk only while it is read."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
import base64
import os
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import yaml
from kubernetes_asyncio.client.api_client import ApiClient

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.api import Api, ApiError
from gpuyard.providers.kubernetes.fields import Json, rows
from gpuyard.providers.tencent.api import TencentApi
from gpuyard.providers.tencent.config import TencentConfig, kubeconfig_of, parsed_kubeconfig

# Where a kubeconfig may hold data in place of a file, base64 all of them.
_DATA = (("clusters", "cluster", "certificate-authority"), ("users", "user", "client-certificate"),
         ("users", "user", "client-key"))  # fmt: skip


class TencentCluster(Api):
    """The API server of a TKE cluster."""

    def __init__(self, settings: TencentConfig, tencent: TencentApi) -> None:
        super().__init__(settings, settings.provider)
        self._tencent_settings, self._tencent = settings, tencent

    async def _open(self) -> ApiClient:
        kubeconfig = await self._kubeconfig()
        named = f"The kubeconfig of {self._tencent_settings.cluster_id}"
        try:
            with _on_disk(kubeconfig) as path:
                return ApiClient(await self._loaded(path, named))
        except (OSError, ValueError) as error:
            message = f"{named} cannot be used: {type(error).__name__}. Set providers.{self._provider}.kubeconfig."
            raise ProviderError(message, self._provider, "NOT_CONNECTED") from None

    async def _kubeconfig(self) -> Json:
        given = self._tencent_settings.kubeconfig
        if given is not None:
            return parsed_kubeconfig(given)
        try:
            return kubeconfig_of(await self._tencent.kubeconfig())
        except ValueError as error:
            message = f"What Tencent gave as the kubeconfig of {self._tencent_settings.cluster_id} {error}."
            raise ProviderError(message, self._provider, "NOT_CONNECTED") from None

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, Any], limit_s: float | None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """As ever; but where the cluster refuses the account, Tencent is asked for its kubeconfig anew, once."""
        request = (method, path, body, query, limit_s)
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(super()._asked(*request))
            except ApiError as error:
                if error.http != 401 or self._tencent_settings.kubeconfig is not None:
                    raise
                answer = await stack.enter_async_context(super()._asked(*request))
            yield answer


@contextmanager
def _on_disk(kubeconfig: Json) -> Generator[Path]:
    """A file with it, in a folder that nobody else can look into and that is gone afterwards.

    What it holds as data becomes files there too: the client would leave them in a common folder until its end.
    """
    with TemporaryDirectory(prefix="gpuyard-") as folder:
        for kind, part, name in _DATA:
            for number, row in enumerate(rows(kubeconfig, kind)):
                data = row.get(part, {}).pop(f"{name}-data", None)
                if data:
                    path = _written(Path(folder, f"{name}-{number}"), base64.b64decode(data))
                    row[part][name] = str(path)
        yield _written(Path(folder, "kubeconfig"), yaml.safe_dump(kubeconfig).encode())


def _written(path: Path, data: bytes) -> Path:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(data)
    return path
