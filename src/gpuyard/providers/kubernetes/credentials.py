"""What a kubeconfig says about the cluster and the account, and when to read it again.

A token that a plugin gave is renewed before it expires, and a file that has changed is
read again: the API server refuses what is too old, also in the middle of a job.
"""

# kubernetes_asyncio has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import asyncio
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes_asyncio import config as kube_config
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.config.config_exception import ConfigException
from kubernetes_asyncio.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_TOKEN_FILENAME,
)

from gpuyard.providers.kubernetes.fields import objects_at, text_at

# A token is renewed this long before it expires, or in the last fifth of its life if
# that is shorter.
_RENEW_BEFORE_S = 300.0
_LAST_PART = 0.2
_TOKEN = "BearerToken"
# The fields of a kubeconfig that name files.
_FILE_FIELDS = (
    ("users", "user", "tokenFile"),
    ("users", "user", "client-certificate"),
    ("users", "user", "client-key"),
    ("clusters", "cluster", "certificate-authority"),
)
_BAD_FILE = (
    ConfigException,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    yaml.YAMLError,
)
_Stamps = Mapping[Path, tuple[int, int, int] | None]


class CredentialsError(Exception):
    """The credentials cannot be read; the text repeats no secret."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach the cluster. `renew_at` is in UTC seconds; `stamps` tell the state
    of the files that all this was read from.
    """

    configuration: Configuration
    stamps: _Stamps
    renew_at: float = math.inf

    def expire_soon(self) -> bool:
        """Whether it is time to renew them."""
        return time.time() >= self.renew_at

    def have_changed(self) -> bool:
        """Whether their files have others by now."""
        return self.stamps != _stamps(self.stamps)

    def equal(self, other: "Credentials") -> bool:
        """Whether an API server that refuses one also refuses the other."""
        return _shown_to_server(self) == _shown_to_server(other)


def _shown_to_server(credentials: Credentials) -> tuple[Any, ...]:
    configuration = credentials.configuration
    token = configuration.api_key.get(_TOKEN)
    certificate = configuration.cert_file
    return token, certificate, certificate and credentials.stamps


def in_cluster() -> Credentials | None:
    """The account of the pod in which gpuyard runs; None outside a cluster."""
    if not Path(SERVICE_TOKEN_FILENAME).exists():
        return None
    stamps = _stamps([Path(SERVICE_TOKEN_FILENAME), Path(SERVICE_CERT_FILENAME)])
    configuration = Configuration()
    try:
        # The stamps tell when the token has changed.
        kube_config.load_incluster_config(
            client_configuration=configuration, try_refresh_token=False
        )
    except _BAD_FILE as error:
        raise _unusable(error) from None
    return _usable(configuration, stamps)


async def from_kubeconfig(
    path: Path, context: str | None, limit_s: float
) -> Credentials:
    """Read a kubeconfig; its plugin, if it names one, may take `limit_s`."""
    configuration = Configuration()
    try:
        stamps = _stamps([path, *_files_of(path)])
        loader = await asyncio.wait_for(
            kube_config.load_kube_config(
                str(path),
                context,
                client_configuration=configuration,
                persist_config=False,
            ),
            limit_s,
        )
    except TimeoutError:
        raise CredentialsError(f"its plugin took over {limit_s:g} s") from None
    except _BAD_FILE as error:
        raise _unusable(error) from None
    expires = getattr(loader, "exec_plugin_expiry", None)
    renew_at = _renewal(expires.timestamp()) if expires else math.inf
    return _usable(configuration, stamps, renew_at)


def _usable(
    configuration: Configuration, stamps: _Stamps, renew_at: float = math.inf
) -> Credentials:
    token = configuration.api_key.get(_TOKEN)
    if token:
        # A token file may end with a newline, which no header may contain.
        configuration.api_key[_TOKEN] = token.strip()
    return Credentials(configuration, stamps, renew_at)


def _unusable(error: Exception) -> CredentialsError:
    # The text of any other error might repeat a token from the file.
    is_safe = isinstance(error, ConfigException | OSError)
    return CredentialsError(str(error) if is_safe else type(error).__name__)


def _renewal(expires_at: float) -> float:
    life_s = expires_at - time.time()
    return expires_at - min(_RENEW_BEFORE_S, max(life_s, 0.0) * _LAST_PART)


def _files_of(kubeconfig: Path) -> list[Path]:
    """The files that a kubeconfig names, whichever of its contexts is used."""
    content: Any = yaml.safe_load(kubeconfig.read_text())
    return [
        kubeconfig.parent / name
        for kind, part, field in _FILE_FIELDS
        for item in objects_at(content, kind)
        if (name := text_at(item, part, field))
    ]


def _stamps(paths: Iterable[Path]) -> _Stamps:
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What differs once the file, or a link on the way to it, has changed."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
