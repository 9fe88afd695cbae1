"""What the real package does not export."""

from sky import _request


def enabled_clouds() -> str:
    """One."""
    return _request(lambda: ["AWS"])
