"""What `[providers.tencent]` may say: what `[providers.kubernetes]` may, and how to find the cluster at Tencent."""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from gpuyard.config.paths import Home
from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.validation import parse_model
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import Json, rows, text

SECRETS = frozenset({"secret_id", "secret_key", "kubeconfig"})
# Tencent's own SDKs and command read these.
_VARIABLES = {
    "secret_id": "TENCENTCLOUD_SECRET_ID", "secret_key": "TENCENTCLOUD_SECRET_KEY", "region": "TENCENTCLOUD_REGION",
}  # fmt: skip


def _word(value: Any) -> Any:
    # In our words, since pydantic's would repeat the value.
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
    """How to find the cluster, and how jobs look there (`KubernetesConfig`).

    `secret_id`, `secret_key`: a key of Tencent's, from the environment where they are not given. `kubeconfig`: base64
    of one; unset, Tencent is asked for the account's own. `extranet`: reach the cluster by its public address.
    `endpoint`: the domain of Tencent's API, before which each service's name goes (`internal.tencentcloudapi.com`), or
    with a scheme the one address of all of it.
    """

    provider: ClassVar[str] = "tencent"

    home: str = Field(default_factory=lambda: str(Home.find().root))
    secret_id: Secret
    secret_key: Secret
    region: Annotated[str, AfterValidator(_region)]
    cluster_id: Annotated[str, AfterValidator(_cluster)]
    kubeconfig: Annotated[str, BeforeValidator(_word), AfterValidator(_kubeconfig)] | None = Field(
        default=None, repr=False
    )
    extranet: bool = False
    endpoint: str = "tencentcloudapi.com"
    currency: str = "CNY"

    @model_validator(mode="after")
    def _is_of_the_cluster(self) -> "TencentConfig":
        others = clusters_named(parsed_kubeconfig(self.kubeconfig)) if self.kubeconfig else set[str]()
        if others and self.cluster_id not in others:
            raise ValueError(
                f"@kubeconfig@is of {', '.join(sorted(others))} and not of {self.cluster_id}; give the cluster's own"
            )
        return self

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "TencentConfig":
        """InvalidInputError names the field that is wrong or missing, and never a secret."""
        given = {key: value for key, value in config.items() if value not in (None, "")}
        found = {key: os.environ[variable].strip() for key, variable in _VARIABLES.items() if os.environ.get(variable)}
        values = {**found, **given}
        missing = [
            Fault(key, "is missing", f"set {_VARIABLES[key]}" if key in _VARIABLES else "name the cluster, as cls-…")
            for key in (*_VARIABLES, "cluster_id") if key not in values
        ]  # fmt: skip
        if missing:
            raise InvalidInputError(missing)
        return parse_model(cls, values)


def parsed_kubeconfig(encoded: str) -> Json:
    """A kubeconfig from base64; ValueError says what is wrong, and nothing of what stands in it."""
    try:
        data = base64.b64decode("".join(encoded.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("is not base64 of text; write the output of `base64 -w0 KUBECONFIG`") from None
    return kubeconfig_of(data)


def kubeconfig_of(data: str) -> Json:
    """A kubeconfig from YAML; ValueError says what is wrong, and nothing of what stands in it."""
    try:
        found: Any = yaml.safe_load(data)
    except yaml.YAMLError:
        raise ValueError("is not YAML; give a whole kubeconfig") from None
    if not (rows(found, "clusters") and rows(found, "users") and rows(found, "contexts")):
        raise ValueError("names no cluster, user and context; give a whole kubeconfig")
    return found


def clusters_named(kubeconfig: Json) -> set[str]:
    """The ids of TKE clusters that it mentions; TKE writes them into names and addresses."""
    words = [text(row, "name") for kind in ("clusters", "contexts") for row in rows(kubeconfig, kind)]
    words += [text(row, "cluster", "server") for row in rows(kubeconfig, "clusters")]
    return {found for word in words for found in re.findall(r"\bcls-[a-z0-9]+", word)}
