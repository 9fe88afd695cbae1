"""The nodes of a pool in an external queue: jobs there that join the instance, until
they are ended. A module per queue says how they are submitted, listed and ended.
"""

import hashlib
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.gpus import resolve_gpu_class
from gpuyard.domain.offers import Offer
from gpuyard.providers.pool_hands import NodeSize, PoolMachine, PoolOrder, PoolOwner

# Its home goes with it. What is still there of it is ended by the queue.
_SCRIPT = """\
#!/bin/sh
# A node of a pool of gpuyard: it joins, and runs jobs until it is ended.
umask 077
code={code}
unset JOIN_CODE
here="$(mktemp -d /tmp/gpuyard-pool.XXXXXX)" || exit 1
GPUYARD_HOME="$here/home"
export GPUYARD_HOME
mkdir "$GPUYARD_HOME" && cd "$GPUYARD_HOME" || exit 1
# Not as an argument: other users of this node see those.
printf '%s\\n' "$code" >"$here/code" || exit 1
{install}{before}{{ {command} join {url} --code-file "$here/code" --foreground; }} &
agent=$!
leave() {{
    trap - TERM
    {end}
    wait "$agent"
    {after}
    cd / && rm -rf "$here"
    exit 0
}}
trap leave TERM
wait "$agent"
cd / && rm -rf "$here"
exit 1
"""
_INSTALL = """\
python3 -m venv "$here/venv" || exit 1
"$here/venv/bin/pip" install --quiet --no-input -- {install} || exit 1
PATH="$here/venv/bin:$PATH"
export PATH
"""
# A shell in the background may go on beside its program: that gets no signal then.
# So a single command takes the place of the shell. Several are a group, which is ended
# whole; a shell that makes none without a terminal gives its place to the last one.
_ONE_COMMAND = re.compile(r"[^\s=;&|<>(){}!]+(\s[^;&|<>(){}!\n]*)?")
_END_IT = """kill "$agent" 2>/dev/null"""
_GROUP = "set -m 2>/dev/null\n"
_END_GROUP = """kill -TERM "-$agent" 2>/dev/null || kill "$agent" 2>/dev/null"""
_AFTER_GROUP = """while kill -0 "-$agent" 2>/dev/null; do sleep 0.1; done"""
SETTING = "SETTING"
"""The code of errors about what the settings ask for."""


def older_label(home: Path) -> str:
    """How earlier versions told the nodes of an instance from those of others. A home
    at the same path gives the same label, so only nodes with a row are its own.
    """
    return hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:12]


class QueuePool(ABC):
    """`PoolHands` of one pool of the instance `owner` at the external queue
    `provider`. `home`: that of the instance.
    """

    def __init__(
        self,
        provider: str,
        pool: PoolSettings,
        poll_s: float,
        currency: str,
        owner: PoolOwner,
        home: str,
    ) -> None:
        self.poll_s = poll_s
        self.pool = pool
        self.owner = owner
        self.older_label = older_label(Path(home))
        self._provider = provider
        self._currency = currency
        # Of a node, once the queue was asked.
        self._price: Decimal | None = None

    # --- what differs ---

    @abstractmethod
    async def offers(self) -> Sequence[Offer]:
        """What a node may be of. ProviderError."""

    @abstractmethod
    async def submit(self, order: PoolOrder, offer: Offer) -> str:
        """Have a node of this offer; its reference. Nothing of this order is there
        yet. ProviderError.
        """

    @abstractmethod
    async def machines(self) -> Sequence[PoolMachine]:
        """See PoolHands."""

    @abstractmethod
    async def end(self, reference: str) -> None:
        """See PoolHands."""

    # --- what they share ---

    async def size(self) -> NodeSize:
        """See PoolHands."""
        offer = await self._offer()
        known = any(offer.capability)
        capability = ".".join(map(str, offer.capability)) if known else ""
        return NodeSize(
            offer.id,
            offer.cpus,
            offer.memory_gb,
            offer.gpus,
            offer.gpu,
            offer.gpu_gb,
            capability,
        )

    async def _offer(self) -> Offer:
        """The offer that the pool takes nodes from; ProviderError if there is none."""
        offers = await self.offers()
        wanted = self.pool.type
        found = [offer for offer in offers if _is_meant(offer, wanted)]
        if not found:
            known = ", ".join(sorted(offer.id for offer in offers)) or "none"
            raise self.error(
                f"type: the cluster has no {wanted or 'node with a GPU'}; it has:"
                f" {known}",
                SETTING,
            )
        limit = self.pool.max_price
        best = min(found, key=lambda offer: (offer.price_per_hour or 0, offer.id))
        if limit is not None and (best.price_per_hour or 0) > limit:
            raise self.error(
                f"max_price: {best.id} costs {best.price_per_hour}"
                f" {best.currency} an hour, and the pool pays at most {limit}",
                "PRICE",
            )
        self._price = best.price_per_hour
        return best

    async def launch(self, order: PoolOrder) -> PoolMachine:
        """See PoolHands."""
        known = await self.find(order.owner)
        if known is not None:
            return known
        reference = await self.submit(order, await self._offer())
        return self.machine(order.owner, reference, live=True)

    async def find(self, owner: str) -> PoolMachine | None:
        """See PoolHands."""
        found = await self.machines()
        return next((machine for machine in found if machine.owner == owner), None)

    def machine(
        self,
        owner: str,
        reference: str,
        *,
        live: bool,
        began_at: float | None = None,
        counts_from: float | None = None,
        leaving: bool = False,
        why: str = "",
    ) -> PoolMachine:
        """A node as the queue tells of it. `counts_from`: since when its lifetime
        counts (UTC seconds).
        """
        ends_at = None
        if counts_from and self.pool.lifetime:
            ends_at = counts_from + self.pool.lifetime
        return PoolMachine(
            owner,
            reference,
            live,
            began_at,
            ends_at,
            leaving,
            why,
            self._price,
            self._currency,
        )

    def script(self, order: PoolOrder, code: str) -> str:
        """The shell script that a node runs. `code`: the secret by which it joins, as
        the shell reads it.
        """
        install = ""
        if self.pool.install:
            install = _INSTALL.format(install=shlex.quote(self.pool.install))
        command = self.pool.command.strip()
        is_one = bool(_ONE_COMMAND.fullmatch(command))
        return _SCRIPT.format(
            code=code,
            install=install,
            before="" if is_one else _GROUP,
            command=f"exec {command}" if is_one else command,
            url=order.join_url,
            end=_END_IT if is_one else _END_GROUP,
            after=":" if is_one else _AFTER_GROUP,
        )

    def error(self, message: str, code: str) -> ProviderError:
        """An error of this provider."""
        return ProviderError(message, self._provider, code)


def _is_meant(offer: Offer, wanted: str | None) -> bool:
    """Whether the pool may take this offer's nodes: by its id, the rest of that, the
    name of its GPU or their class; without any, those that have a GPU.
    """
    if offer.problem:
        return False
    if wanted is None:
        return offer.gpus > 0
    if wanted in (offer.id, offer.id.partition("/")[2], offer.gpu):
        return True
    try:
        classes = resolve_gpu_class(wanted)
    except ValueError:
        return False
    return bool(offer.classes) and offer.classes <= classes
