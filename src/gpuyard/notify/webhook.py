"""A configured webhook: its address, the events it wants and its signing key."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.events import EventKind
from gpuyard.domain.webhooks import WebhookFormat, WebhookSpec


@dataclass(frozen=True, slots=True)
class Webhook:
    """One receiver.

    `id` stays the same while its address does. `label` names it in logs and holds only
    the host of the address, which may be a secret. `public_only`: it is told only if
    its host is one of the public internet.
    """

    id: str
    label: str
    url: str = field(repr=False)
    kinds: frozenset[EventKind]
    project: str
    format: WebhookFormat
    secret: bytes = field(repr=False)
    public_only: bool = False

    def wants(self, job: Mapping[str, Any] | None) -> bool:
        """Whether it wants events of this job (None: of no job)."""
        return not self.project or (job is not None and job["project"] == self.project)


def read_webhooks(
    specs: Sequence[WebhookSpec], environment: Mapping[str, str]
) -> tuple[Webhook, ...]:
    """The configured webhooks.

    Raises InvalidInputError when the environment lacks a signing key.
    """
    seen = Counter[str]()
    hooks: list[Webhook] = []
    for index, spec in enumerate(specs):
        field_name = f"notify.webhooks.{index}"
        secret = environment.get(spec.secret_env, "") if spec.secret_env else ""
        if spec.secret_env and not secret:
            raise InvalidInputError.of(
                f"{field_name}.secret_env",
                f"{spec.secret_env} is not set",
                "set it where the server is started, or leave secret_env out",
            )
        # Several may share an address; only its digest is kept, since the address
        # itself may be a secret.
        seen[spec.url] += 1
        numbered_url = f"{seen[spec.url]} {spec.url}"
        digest = hashlib.sha256(numbered_url.encode()).hexdigest()
        label = f"{field_name} at {urlsplit(spec.url).hostname}"
        hooks.append(
            Webhook(
                digest[:32],
                label,
                spec.url,
                spec.kinds,
                spec.project,
                spec.format,
                secret.encode(),
            )
        )
    return tuple(hooks)
