"""EC2's description of a machine as ours: pure functions."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpuyard.providers.instances.api import TAG_OWNER, Instance, InstanceState

_STATES: Mapping[str, InstanceState] = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.ENDING,
    "stopping": InstanceState.ENDING,
    "stopped": InstanceState.ENDING,
    "terminated": InstanceState.GONE,
}
_INTERRUPTED = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")


def instance_of(row: Mapping[str, Any], region: str) -> Instance:
    """A machine from EC2's description."""
    state = _STATES.get(row.get("State", {}).get("Name", ""), InstanceState.PENDING)
    reason: Mapping[str, Any] = row.get("StateReason") or {}
    code = str(reason.get("Code") or "")
    tags = {tag["Key"]: tag["Value"] for tag in row.get("Tags") or ()}
    launched: datetime | None = row.get("LaunchTime")
    return Instance(
        id=row["InstanceId"],
        region=region,
        zone=row.get("Placement", {}).get("AvailabilityZone", ""),
        type=row.get("InstanceType", ""),
        spot=row.get("InstanceLifecycle") == "spot",
        state=state,
        owner=tags.get(TAG_OWNER, ""),
        launched_at=launched.timestamp() if launched else None,
        why=_why(reason, row) if not state.is_live else "",
        interrupted=code.startswith(_INTERRUPTED),
    )


def _why(reason: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """In EC2's words; the code stands in them already."""
    words = reason.get("Message") or row.get("StateTransitionReason") or ""
    return str(words)
