"""The lines of `gpuyard top` about pools and rented machines."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

Item = Mapping[str, Any]


def pool_lines(pools: Sequence[Item]) -> list[str]:
    """One for each pool: its nodes, what waits for it, and why it grows or does not."""
    return [
        f"Pool {pool['name']} ({pool['min']} to {pool['max']} nodes):"
        f" {states_of(pool['nodes'])}; {pool['waiting']} waiting;"
        f" {pool['problem'] or pool['why'] or 'not looked at yet'}"
        for pool in pools
    ]


def machine_lines(machines: Sequence[Item]) -> list[str]:
    """One for all rented machines; none where nothing is rented."""
    if not machines:
        return []
    count = len(machines)
    by_provider = Counter(machine["provider"] for machine in machines)
    where = ", ".join(f"{number} at {name}" for name, number in by_provider.items())
    costs: defaultdict[str, Decimal] = defaultdict(Decimal)
    for machine in machines:
        if machine["cost"] is not None:
            costs[machine["currency"]] += Decimal(machine["cost"])
    so_far = ", ".join(f"{cost:.2f} {currency}" for currency, cost in costs.items())
    noun = "machine" if count == 1 else "machines"
    spot = sum(machine["spot"] for machine in machines)
    return [
        f"Rented: {count} {noun} ({where}; {spot} spot), {so_far or 'unknown'} so far"
    ]


def states_of(nodes: Mapping[str, int]) -> str:
    """`2 joined, 1 booting`."""
    found = [f"{count} {state}" for state, count in nodes.items() if count]
    return ", ".join(found) or "0"
