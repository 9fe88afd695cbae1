"""What a job may use of the host's memory when it does not say how much it needs."""

_SHARE = 0.05
_LEAST_GB = 1.0
_MOST_SHARE = 0.5
# What a program needs to start, however much the settings reserve.
_LEAST_LEFT_GB = 1 / 16


def default_memory_gb(host_gb: float, reserve_gb: float | None) -> float:
    """The memory limit of a job that names none, in GB.

    `host_gb`: the memory of the host. `reserve_gb`: what stays for the system and for
    gpuyard; by default 5 %, at least 1 GB and at most half.
    """
    if reserve_gb is None:
        by_share = max(_SHARE * host_gb, _LEAST_GB)
        reserve_gb = min(by_share, _MOST_SHARE * host_gb)
    return max(host_gb - reserve_gb, _LEAST_LEFT_GB)
