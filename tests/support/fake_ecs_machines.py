"""What tests/support/fake_ecs.py has: zones, types and machines; and how it reads and
refuses requests.
"""

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
ZONES = {
    "cn-hangzhou": ("cn-hangzhou-h", "cn-hangzhou-i"),
    "ap-southeast-1": ("ap-southeast-1a",),
}
TYPES = {
    "ecs.gn6i-c4g1.xlarge": ("NVIDIA T4", 1, 16, 4, 15),
    "ecs.gn6v-c8g1.2xlarge": ("NVIDIA V100", 1, 16, 8, 32),
    "ecs.gn7-c12g1.3xlarge": ("NVIDIA A100", 1, 40, 12, 94),
    "ecs.g7.large": ("", 0, 0, 2, 8),
}
"""By name: its GPU, how many, GiB of each, vCPUs, GiB."""
DISK_PRICE = 0.05
"""Of a system disk, per hour."""


class RefusalError(Exception):
    """Alibaba's code, message and HTTP status."""

    def __init__(
        self, code: str, message: str = "", status: int = 400, **more: Any
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message or f"The request is refused: {code}."
        self.status = status
        self.more = more


@dataclass
class Machine:
    """A machine. `status` is Alibaba's; it takes those of `next_statuses` one by one,
    each time that somebody asks. `released_at` is when Alibaba deletes it by itself.
    """

    id: str
    region: str
    zone: str
    type: str
    spot: bool
    tags: Mapping[str, str]
    order: Mapping[str, str]
    user_data: str
    created_at: float
    status: str = "Pending"
    next_statuses: list[str] = field(default_factory=lambda: ["Starting", "Running"])
    released_at: float | None = None
    locked_for: str = ""


def listed(parameters: Mapping[str, str], name: str) -> list[str]:
    """The values of `Name.1`, `Name.2`, … in their order."""
    found: list[str] = []
    while (value := parameters.get(f"{name}.{len(found) + 1}")) is not None:
        found.append(value)
    return found


def is_true(parameters: Mapping[str, str], name: str) -> bool:
    """Whether a switch is on; Alibaba's own SDKs write `true` and `True`."""
    return parameters.get(name, "").lower() == "true"


def tags_in(parameters: Mapping[str, str]) -> dict[str, str]:
    """The tags of `Tag.1.Key`, `Tag.1.Value`, …"""
    found: dict[str, str] = {}
    while (key := parameters.get(f"Tag.{len(found) + 1}.Key")) is not None:
        found[key] = parameters.get(f"Tag.{len(found) + 1}.Value", "")
    return found


def ids_in(parameters: Mapping[str, str]) -> Sequence[str]:
    """The ids of `InstanceIds`, which is JSON."""
    return json.loads(parameters.get("InstanceIds", "[]"))


def plain(user_data: str) -> str:
    """User data from base64; RefusalError."""
    try:
        return base64.b64decode(user_data, validate=True).decode()
    except ValueError:
        raise RefusalError(
            "InvalidUserData.Base64FormatInvalid", "UserData is not base64."
        ) from None


def new_id() -> str:
    """The id of a new machine."""
    return f"i-{uuid.uuid4().hex[:20]}"
