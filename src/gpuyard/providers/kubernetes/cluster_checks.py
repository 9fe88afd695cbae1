"""Checks that a cluster can be used: it is the one of before, it lets Jobs begin, and
the account has its rights.
"""

import math
import time
from pathlib import Path
from typing import Any

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.api_errors import ApiError
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import text_at
from gpuyard.providers.kubernetes.rights import missing_rights

# The cluster is compared with the one of before this often, and after each failure.
_COMPARED_EVERY_S = 600.0
_KUEUE = "/apis/kueue.x-k8s.io"


class ClusterChecks:
    """The checks of one cluster. `uid_file` keeps which one it was."""

    def __init__(
        self,
        api: KubernetesApi,
        settings: KubernetesConfig,
        provider: str,
        uid_file: Path,
    ) -> None:
        self._api = api
        self._settings = settings
        self._provider = provider
        self._uid_file = uid_file
        self._compared_at = -math.inf

    def doubt(self) -> None:
        """It did not answer: its kubeconfig may name another one when it does."""
        self._compared_at = -math.inf

    async def check(self) -> None:
        """ProviderError when nothing must be sent to the cluster."""
        now = time.monotonic()
        if now - self._compared_at >= _COMPARED_EVERY_S:
            await self._compare()
            self._compared_at = now
        await self._check_queue()

    async def _compare(self) -> None:
        """Refuse another cluster than before: jobs of the old one would seem lost."""
        try:
            namespace = await self._api.call("GET", self._api.namespaced)
        except ApiError as error:
            if error.http == 403:
                return  # the account may not read its namespace, so nothing is known
            raise
        uid = text_at(namespace, "metadata", "uid")
        old_uid = self._uid_file.read_text() if self._uid_file.exists() else uid
        if old_uid != uid:
            message = (
                "This is another cluster than before (its namespace"
                f" {self._settings.namespace} is {uid} and was {old_uid}). Give"
                f" providers.{self._provider} its old kubeconfig while it has jobs;"
                f" to go over to the new one, delete {self._uid_file}."
            )
            raise ProviderError(message, self._provider, "NOT_CONNECTED")
        if uid and not self._uid_file.exists():
            self._uid_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._uid_file.write_text(uid)

    async def _check_queue(self) -> None:
        """Refuse a cluster without Kueue if the settings name a queue: nothing would
        ever let the Jobs begin.
        """
        queue = self._settings.queue
        if not queue or await self._api.serves(_KUEUE):
            return
        message = (
            f"providers.{self._provider}.queue is {queue}, and the cluster has no"
            " Kueue (it does not serve kueue.x-k8s.io). Install Kueue there, or leave"
            " queue out."
        )
        raise ProviderError(message, self._provider, "NO_KUEUE")

    async def health(self) -> dict[str, Any]:
        """Healthy while the API answers, the namespace exists, and the account has the
        rights it needs.
        """
        try:
            version = (await self._api.call("GET", "/version")).get("gitVersion")
            await self._compare()
            await self._check_queue()
            missing = await missing_rights(self._api, self._settings)
        except ProviderError as error:
            return {"status": "unhealthy", "message": str(error)}
        if missing:
            message = (
                f"its account may not {', '.join(missing)} in the namespace"
                f" {self._settings.namespace}; see deploy/kubernetes/rbac.yaml"
            )
            return {"status": "degraded", "message": message, "version": version}
        return {"status": "healthy", "version": version}
