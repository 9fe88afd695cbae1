"""SkyPilot's words as gpuyard's, and gpuyard's as SkyPilot's: pure functions."""

import base64
import math
import shlex
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from gpuyard.domain.gpus import GPU_CLASSES, classify
from gpuyard.providers.instances.api import (
    Instance,
    InstanceOrder,
    InstanceState,
    MachineType,
    Market,
)

REGION = "skypilot"
"""The region of all machines: SkyPilot's names of clusters hold in all clouds."""
IDLE_MINUTES = 2
"""SkyPilot deletes a machine that has had no job for so long."""
JOB_FILE = "~/.gpuyard-job.sh"
"""SkyPilot brings this file to the machine."""
JOB_COMMAND = f"chmod 600 {JOB_FILE} && sudo sh {JOB_FILE}\n"
"""SkyPilot's job on the machine. The invitation is in the file and not in a command,
which everybody on the machine could read.
"""
_ATTACHABLE = "(attachable)"
# A machine whose SkyPilot did not delete it ends itself, this much later.
_POWER_OFF_LATER_S = 900
_LONGEST_LOOK_S = 30
_STATES = {
    "INIT": InstanceState.PENDING,
    "PENDING": InstanceState.PENDING,
    "UP": InstanceState.RUNNING,
    "STOPPED": InstanceState.ENDING,
    "AUTOSTOPPING": InstanceState.ENDING,
}
# How SkyPilot writes the names of GPUs whose drivers say something else.
_GPU_NAMES = {
    "A100-80GB": "NVIDIA A100 80GB",
    "V100-32GB": "NVIDIA V100 32GB",
    "RTX3090": "NVIDIA GeForce RTX 3090",
    "RTX4090": "NVIDIA GeForce RTX 4090",
    "RTX5090": "NVIDIA GeForce RTX 5090",
    "RTXA6000": "NVIDIA RTX A6000",
    "A6000": "NVIDIA RTX A6000",
    "RTX6000-Ada": "NVIDIA RTX 6000 Ada",
}


def cluster_prefix(installation: str) -> str:
    """How the names of an installation's clusters begin."""
    return f"gpuyard-{_word(installation)[-8:]}-"


def cluster_name(owner: str, installation: str) -> str:
    """The cluster of an owner: SkyPilot has one cluster of a name."""
    return cluster_prefix(installation) + _word(owner)


def owner_of(name: str, installation: str) -> str:
    """The owner of a cluster: ids are `KIND_NUMBER`."""
    return name.removeprefix(cluster_prefix(installation)).replace("-", "_", 1)


def _word(text: str) -> str:
    return text.lower().replace("_", "-")


# --- what can be rented ---


def machine_type(row: Mapping[str, Any]) -> MachineType | None:
    """A row of the catalogue; None if it is no whole machine."""
    name = row["instance_type"]
    count = row["accelerator_count"]
    if not name or name == _ATTACHABLE or count != int(count):
        return None
    gpu = row["accelerator_name"]
    named = _GPU_NAMES.get(gpu, f"NVIDIA {gpu}") if count else ""
    memory_gb = float(row["device_memory"] or 0)
    found = classify(named, round(memory_gb * 1024))
    return MachineType(
        name=name,
        gpu=named,
        gpus=int(count),
        gpu_memory_gb=memory_gb,
        capability=GPU_CLASSES[found].compute_capability if found else "",
        cpus=float(row["cpu_count"] or 1),
        memory_gb=float(row["memory"] or 1),
    )


def markets_of(
    rows: Sequence[Mapping[str, Any]], *, with_spot: bool, read_on: str
) -> list[Market]:
    """The markets of a catalogue that was read on this day (`2026-11-29`)."""
    found: list[Market] = []
    for row in rows:
        kind = machine_type(row)
        if kind is None:
            continue
        zone = f"{row['cloud'].lower()}/{row['region']}"
        prices = {False: row["price"], True: row["spot_price"]}
        for spot, price in prices.items():
            amount = _price(price)
            if amount is None or (spot and not with_spot):
                continue
            source = f"SkyPilot's catalogue, read on {read_on}"
            found.append(Market(kind, row["region"], zone, spot, amount, "USD", source))
    return found


def _price(value: Any) -> Decimal | None:
    """A price of the catalogue; None where it has none (a NaN or zero)."""
    if value is None or math.isnan(value) or value <= 0:
        return None
    return Decimal(str(value))


# --- a machine ---


def resources_of(order: InstanceOrder) -> dict[str, Any]:
    """What SkyPilot is asked for: this type in this region and no other."""
    resources: dict[str, Any] = {
        "infra": order.zone,
        "instance_type": order.type,
        "use_spot": order.spot,
        "disk_size": order.disk_gb,
        "labels": {
            "gpuyard-installation": _word(order.installation),
            "gpuyard-owner": _word(order.owner),
        },
    }
    if order.image:
        resources["image_id"] = order.image
    if order.max_price is not None:
        resources["max_hourly_cost"] = float(order.max_price)
    return resources


def job_script(user_data: str, silence_s: float) -> str:
    """What is in JOB_FILE: it boots the machine, and goes on for as long as the server
    speaks to it.
    """
    whole_s = max(math.ceil(silence_s), 1)
    values = {
        "boot_script": base64.b64encode(user_data.encode()).decode(),
        "silence_s": str(whole_s),
        "power_off_s": str(whole_s + _POWER_OFF_LATER_S),
        "look_s": str(min(max(whole_s // 4, 1), _LONGEST_LOOK_S)),
    }
    assignments = [f"{name}={shlex.quote(text)}" for name, text in values.items()]
    return "\n".join((*assignments, _rest_of_script()))


@cache
def _rest_of_script() -> str:
    return Path(__file__).with_name("boot_on_skypilot.sh").read_text()


def instance_of(row: Mapping[str, Any], installation: str) -> Instance:
    """A cluster that SkyPilot knows."""
    return Instance(
        id=row["name"],
        region=REGION,
        zone=f"{row['cloud']}/{row['region']}",
        type=row["type"],
        spot=row["spot"],
        state=_STATES.get(row["status"], InstanceState.PENDING),
        owner=owner_of(row["name"], installation),
        launched_at=float(row["launched_at"]) if row["launched_at"] else None,
        why=row["why"],
    )
