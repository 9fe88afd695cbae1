"""What the cluster's events say: their order, and which of them are final."""

from collections.abc import Iterable, Sequence

from gpuyard.providers.kubernetes.fields import Json, text_at
from gpuyard.providers.kubernetes.times import instant

# Components write either old events (`lastTimestamp`), or new ones (`eventTime`, and
# `series` once they repeat).
_TIMES = (
    ("series", "lastObservedTime"),
    ("lastTimestamp",),
    ("eventTime",),
    ("firstTimestamp",),
    ("metadata", "creationTimestamp"),
)
_PULL_FAILED = ("Failed to pull image", "Failed to apply default image tag")
_BAD_IMAGE = (
    "not found",
    "manifest unknown",
    "does not exist",
    "denied",
    "unauthorized",
    "invalid reference",
)
# What admission says of pods that it will not let in until somebody changes the
# settings or the job. A quota, for example, may have room later.
_FINAL_REFUSALS = ("violates PodSecurity", "denied the request", "denied request: ")


def newest_last(events: Iterable[Json]) -> list[Json]:
    """The events in the order in which they were last seen."""
    return sorted(events, key=_seen_at)


def _seen_at(event: Json) -> float:
    times = [instant(text_at(event, *path)) for path in _TIMES]
    return max((at for at in times if at is not None), default=0.0)


def missing_image(events: Sequence[Json], waiting_message: str) -> str:
    """Why the image can never be pulled, in the words of the kubelet; empty if it may
    still be pulled.

    `events`: the newest last. `waiting_message`: what the pod's status says.
    """
    told = [text_at(event, "message") for event in events if _is_about_image(event)]
    lines = [waiting_message, *told]
    final = [line for line in lines if any(word in line for word in _BAD_IMAGE)]
    return final[-1] if final else ""


def _is_about_image(event: Json) -> bool:
    """Other things are "not found", too: claims, secrets."""
    source = text_at(event, "source", "component")
    component = source or text_at(event, "reportingComponent")
    is_pull = text_at(event, "message").startswith(_PULL_FAILED)
    return component == "kubelet" and is_pull


def final_refusal(events: Sequence[Json]) -> str:
    """Why admission will never let in the pods of a Job; empty if it may.

    `events`: the newest last.
    """
    for event in reversed(events):
        if event.get("reason") == "FailedCreate":
            message = text_at(event, "message")
            is_final = any(words in message for words in _FINAL_REFUSALS)
            return message if is_final else ""
    return ""
