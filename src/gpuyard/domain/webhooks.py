"""Webhooks as they are configured: the address, the events, the format, and the key
that signs them.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpuyard.domain.errors import quoted
from gpuyard.domain.events import EventKind
from gpuyard.domain.strict_model import StrictModel

# Progress is on the stream only. What is not in the journal cannot be delivered at
# least once.
DELIVERED = frozenset(EventKind) - {EventKind.JOB_PROGRESS}
_A_TABLE = "write [[notify.webhooks]] and a url below it"


class WebhookFormat(StrEnum):
    """What is sent: the whole event, or the one sentence that a chat shows."""

    JSON = "json"
    SLACK = "slack"


def kinds_of(globs: tuple[str, ...]) -> frozenset[EventKind]:
    """The kinds of events that these patterns mean."""
    return frozenset(
        kind for kind in DELIVERED if any(fnmatchcase(kind, glob) for glob in globs)
    )


# No message below shows the refused value: an address, or what was written in place of
# a variable's name, may be a secret.


def web_address(value: Any) -> str:
    """A URL of http or https; ValueError."""
    remedy = "write http://HOST… or https://HOST…"
    if not isinstance(value, str):
        raise ValueError(f"is no text; {remedy}")
    try:
        parts = urlsplit(value)
        known = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
        )
    except ValueError:
        known = False
    if not known or not value.isprintable() or " " in value:
        raise ValueError(f"is no address of http or https; {remedy}")
    return value


def _glob(text: str) -> str:
    if not kinds_of((text,)):
        near = get_close_matches(text, list(DELIVERED), n=3, cutoff=0.5) or [
            "job.failed",
            "job.*",
        ]
        raise ValueError(
            f"{quoted(text)} matches no event; write a kind or a pattern, such as"
            f" {' or '.join(near)}"
        )
    return text


def _some(globs: tuple[str, ...]) -> tuple[str, ...]:
    if not globs:
        raise ValueError("is empty; name at least one event, or leave it out")
    return globs


def _variable(text: str) -> str:
    # All other variables of the server are passed on to jobs.
    if text and not re.fullmatch(r"GPUYARD_[A-Z0-9_]+", text):
        raise ValueError(
            "names no variable of gpuyard's own, which jobs do not see; name one such"
            " as GPUYARD_HOOK_KEY"
        )
    return text


EventPatterns = Annotated[
    tuple[Annotated[str, AfterValidator(_glob)], ...], AfterValidator(_some)
]
"""Patterns for kinds of events; each matches at least one."""
VariableName = Annotated[str, AfterValidator(_variable)]
"""The name of a variable of the server that jobs do not see; empty for none."""
DEFAULT_EVENTS = (
    EventKind.JOB_FAILED.value,
    EventKind.JOB_TIMED_OUT.value,
    EventKind.DISK_FILLING.value,
    EventKind.WORKSPACE_EXPIRES.value,
    "provider.*",
)


class WebhookSpec(StrictModel):
    """One webhook. `events` are patterns for kinds of events; `project`: only events of
    that project's jobs.

    `secret_env` is the name of the environment variable that holds the key of the
    signature ("": it is not signed).
    """

    url: Annotated[str, BeforeValidator(web_address)] = Field(repr=False)
    events: EventPatterns = DEFAULT_EVENTS
    secret_env: VariableName = ""
    format: WebhookFormat = WebhookFormat.JSON
    project: str = ""

    @model_validator(mode="before")
    @classmethod
    def _is_a_table(cls, value: Any) -> Any:
        if not isinstance(value, Mapping | WebhookSpec):
            raise ValueError(f"is no table; {_A_TABLE}")
        return value  # pyright: ignore[reportUnknownVariableType]

    @property
    def kinds(self) -> frozenset[EventKind]:
        """The kinds of events it asks for."""
        return kinds_of(self.events)


def _a_list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError(f"is no list; {_A_TABLE}")
    return value  # pyright: ignore[reportUnknownVariableType]


Webhooks = Annotated[tuple[WebhookSpec, ...], BeforeValidator(_a_list)]
