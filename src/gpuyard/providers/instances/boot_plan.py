"""What the first boot of a rented machine has to bring about."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class BootPlan:
    """A machine that joins the instance by itself.

    `join_url` and `join_code` are the two arguments of `gpuyard join`; the code is good
    for this machine only. `install` is how gpuyard comes onto the machine: what pip is
    asked for (`gpuyard==1.0`, or the URL of a wheel).

    The machine ends itself after it has heard nothing from the server for `silence_s`
    seconds. `needs_gpus` is how many GPUs it must see; `needs_docker` says that its job
    runs in an image. Notices of interruption are watched for on a `spot` machine of
    this `cloud` (`aws`, `alibaba`).
    """

    join_url: str
    join_code: str = field(repr=False)
    node_name: str
    install: str
    silence_s: float
    needs_gpus: int
    needs_docker: bool
    spot: bool
    cloud: str
