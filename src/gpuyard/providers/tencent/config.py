"""What `[providers.tencent]` may say: the settings of `[providers.kubernetes]`, and how
to find the cluster at Tencent.
"""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.validation import parse_model
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import Json, objects_at, text_at

SECRETS = frozenset({"secret_id", "secret_key", "kubeconfig"})
# Tencent's own SDKs and command-line tool read these variables.
_VARIABLES = {
    "secret_id": "TENCENTCLOUD_SECRET_ID",
    "secret_key": "TENCENTCLOUD_SECRET_KEY",
    "region": "TENCENTCLOUD_REGION",
}


def _word(value: Any) -> Any:
    # pydantic's own message would repeat the secret value.
    if not isinstance(value, str | SecretStr):
        raise ValueError("is not text; write it in quotes")
    return value


def _region(value: str) -> str:
    if not re.fullmatch(r"[a-z]{2}-[a-z0-9-]+", value):
        raise ValueError(f"{value!r} is no region; write it as ap-guangzhou")
    return value


def _cluster(value: str) -> str:
    if not re.fullmatch(r"cls-[a-z0-9]+", value):
        raise ValueError(f"{value!r} is no cluster's id; write it as cls-65r1c5nu")
    return value


def _kubeconfig(value: str) -> str:
    parsed_kubeconfig(value)
    return value


Secret = Annotated[SecretStr, BeforeValidator(_word)]


class TencentConfig(KubernetesConfig):
    """How to find the cluster, and the settings of its Jobs (`KubernetesConfig`).

    - `secret_id`, `secret_key`: a Tencent API key; unset, from the environment.
    - `kubeconfig`: a kubeconfig in base64; unset, the account's own from Tencent.
    - `extranet`: reach the cluster by its public address.
    - `endpoint`: the domain of Tencent's API (`internal.tencentcloudapi.com`), to which
      each service adds its name. With a scheme: the one address of all services.
    """

    provider: ClassVar[str] = "tencent"

    secret_id: Secret
    secret_key: Secret
    region: Annotated[str, AfterValidator(_region)]
    cluster_id: Annotated[str, AfterValidator(_cluster)]
    kubeconfig: (
        Annotated[str, BeforeValidator(_word), AfterValidator(_kubeconfig)] | None
    ) = Field(default=None, repr=False)
    extranet: bool = False
    endpoint: str = "tencentcloudapi.com"
    currency: str = "CNY"

    @model_validator(mode="after")
    def _kubeconfig_is_of_cluster(self) -> "TencentConfig":
        if not self.kubeconfig:
            return self
        clusters = clusters_named(parsed_kubeconfig(self.kubeconfig))
        if clusters and self.cluster_id not in clusters:
            raise ValueError(
                f"@kubeconfig@is of {', '.join(sorted(clusters))} and not of"
                f" {self.cluster_id}; give the cluster's own"
            )
        return self

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "TencentConfig":
        """InvalidInputError names a wrong or missing field, and never a secret."""
        values: dict[str, Any] = {
            key: os.environ[variable].strip()
            for key, variable in _VARIABLES.items()
            if os.environ.get(variable)
        }
        given = {key: value for key, value in config.items() if value not in (None, "")}
        values.update(given)
        remedies = {key: f"set {variable}" for key, variable in _VARIABLES.items()}
        remedies["cluster_id"] = "name the cluster, as cls-…"
        missing = [
            Fault(key, "is missing", remedy)
            for key, remedy in remedies.items()
            if key not in values
        ]
        if missing:
            raise InvalidInputError(missing)
        return parse_model(cls, values)


def parsed_kubeconfig(encoded: str) -> Json:
    """A kubeconfig from base64. The text of a ValueError repeats nothing of it."""
    try:
        data = base64.b64decode("".join(encoded.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError(
            "is not base64 of text; write the output of `base64 -w0 KUBECONFIG`"
        ) from None
    return kubeconfig_of(data)


def kubeconfig_of(data: str) -> Json:
    """A kubeconfig from YAML. The text of a ValueError repeats nothing of it."""
    try:
        found: Any = yaml.safe_load(data)
    except yaml.YAMLError:
        raise ValueError("is not YAML; give a whole kubeconfig") from None
    for section in ("clusters", "users", "contexts"):
        if not objects_at(found, section):
            raise ValueError(
                "names no cluster, user and context; give a whole kubeconfig"
            )
    return found


def clusters_named(kubeconfig: Json) -> set[str]:
    """The ids of the TKE clusters in it; TKE writes them into names and addresses."""
    clusters = objects_at(kubeconfig, "clusters")
    contexts = objects_at(kubeconfig, "contexts")
    texts = [text_at(item, "name") for item in (*clusters, *contexts)]
    texts += [text_at(cluster, "cluster", "server") for cluster in clusters]
    return set(re.findall(r"\bcls-[a-z0-9]+", "\n".join(texts)))
