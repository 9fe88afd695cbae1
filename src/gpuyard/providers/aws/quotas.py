"""How many virtual CPUs AWS lets an account run, by kind of machine and market."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VcpuQuota:
    """A quota of EC2, in virtual CPUs. `name` is AWS's."""

    code: str
    name: str


_G_ON_DEMAND = VcpuQuota("L-DB2E81BA", "Running On-Demand G and VT instances")
_P_ON_DEMAND = VcpuQuota("L-417A185B", "Running On-Demand P instances")
_G_SPOT = VcpuQuota("L-3819A6DF", "All G and VT Spot Instance Requests")
_P_SPOT = VcpuQuota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests")
_P5_SPOT = VcpuQuota("L-C4BD4855", "All P5 Spot Instance Requests")


def quota_of(type_name: str, spot: bool) -> VcpuQuota | None:
    """The quota that a type counts for; None for a type that we know none of."""
    family = type_name.partition(".")[0]
    if re.match(r"gr?\d", family):
        return _G_SPOT if spot else _G_ON_DEMAND
    if not re.match(r"p\d", family):
        return None
    if not spot:
        return _P_ON_DEMAND
    if family.startswith("p5"):
        return _P5_SPOT
    return _P_SPOT if family[1] in "234" else None
