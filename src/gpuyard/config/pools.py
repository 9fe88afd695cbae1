"""`[pools.NAME]`: nodes that are kept ready on a provider."""

import re
from collections.abc import Mapping, Set
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, Field

from gpuyard.config.sections import Period, Seconds, SettingsSection
from gpuyard.domain.errors import quoted

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
MOST_NODES = 1000


def _pool_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{quoted(value)} is not the name of a pool; use lower-case letters, digits"
            " and -, at most 32, such as warm"
        )
    return value


PoolName = Annotated[str, AfterValidator(_pool_name)]


class PoolSettings(SettingsSection):
    """A pool. Between `min` and `max` nodes are rented from `provider`; one that has
    had nothing to do for `idle` is ended.

    `type` is the size of a node, in the provider's words (`g5.xlarge`; for Slurm an
    offer such as `slurm/gpu/a100`) or a GPU class; unset, the cheapest one with a GPU.
    Only those in these `regions` and `zones` are taken, if any are named. `spot`: they
    may be taken back. `max_price` is the most that one may cost per hour, in the
    provider's currency.

    A node that has not joined `boot_timeout` after its start, or whose agent is silent
    for `silence`, is replaced; so is one when its `lifetime` is nearly over, if it has
    one. In an external queue, `command` starts gpuyard on a node, which is of this
    `image` on Kubernetes; `install` is what pip is asked for where gpuyard is missing.
    """

    provider: str = Field(min_length=1)
    type: str | None = Field(default=None, min_length=1)
    min: int = Field(default=0, ge=0, le=MOST_NODES)
    max: int = Field(default=1, ge=1, le=MOST_NODES)
    idle: Period = 600.0
    spot: bool = False
    max_price: Decimal | None = Field(default=None, gt=0)
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    boot_timeout: Period = 900.0
    silence: Period = 300.0
    lifetime: Seconds = 0.0
    command: str = Field(default="gpuyard", min_length=1)
    image: str | None = Field(default=None, min_length=1)
    install: str | None = Field(default=None, min_length=1)


def check_pools(
    pools: Mapping[str, PoolSettings], providers: Set[str], *, may_join: bool
) -> None:
    """ValueError, with the setting between two @, for a pool that cannot be: its
    provider is none of the instance's, or no machine may join.
    """
    for name, pool in pools.items():
        if pool.min > pool.max:
            raise ValueError(
                f"@pools.{name}.min@is {pool.min}, and max is {pool.max}; write at most"
                f" {pool.max}, or a higher max"
            )
        if pool.provider not in providers:
            known = ", ".join(sorted(providers)) or "none"
            raise ValueError(
                f"@pools.{name}.provider@there is no section"
                f" [providers.{pool.provider}]; name one that has one: {known}"
            )
        if not may_join:
            raise ValueError(
                f"@server.agents_listen@is missing, and the nodes of the pool {name}"
                ' could not join; write an address and a port, such as "0.0.0.0:7433"'
            )
