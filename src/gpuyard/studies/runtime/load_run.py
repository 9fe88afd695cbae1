# pyright: basic, reportMissingImports=false
"""Put an engine under load at each rate, and write what came of it."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from .communicator import agree
from .experiment import Experiment
from .launch import Mesh
from .load_generator import (
    TimedRequest,
    ask_concurrently,
    ask_in_batches,
    poisson_arrivals,
)
from .prompts import Prompt


def run_load(
    experiment: Experiment, mesh: Mesh, engine: Any, prompts: list[Prompt], path: Path
) -> None:
    """Ask an engine at each rate, and write the rows of this replica.

    `prompts` are those of all replicas, which take turns at the requests.
    """
    load = experiment.load
    count_of_leader = _replica_count(mesh)
    lines: list[str] = []
    for rate in load["rates"]:
        requests = poisson_arrivals(prompts, rate, load["requests"], load["seed"])
        mine = requests[mesh.dp_rank :: mesh.dp_size]
        # All ranks begin at the same time.
        agree(None)
        rows = _ask(experiment, engine, mine, count_of_leader) if mine else []
        lines += [json.dumps({"rate": rate, **row}) + "\n" for row in rows]
    if mesh.is_output:
        _write(path, lines)


def _ask(
    experiment: Experiment,
    engine: Any,
    requests: Sequence[TimedRequest],
    count_of_leader: Callable[[int], int],
) -> list[dict[str, Any]]:
    if experiment.is_served:
        return ask_concurrently(engine, requests)
    return ask_in_batches(engine, requests, experiment.batch_size, count_of_leader)


def _replica_count(mesh: Mesh) -> Callable[[int], int]:
    """Return a function that gives all ranks of a replica the number of its leader.

    The leader has the exact times: the first rank of the last stage.
    """
    groups: list[Any] = []
    if distributed.is_initialized():
        stages = range(mesh.pp_size)
        peers = range(mesh.tp_size)
        for dp in range(mesh.dp_size):
            ranks = [mesh.rank_of(dp, pp, tp) for pp in stages for tp in peers]
            group = distributed.new_group(ranks)
            if dp == mesh.dp_rank:
                groups.append(group)
    leader = mesh.rank_of(mesh.dp_rank, mesh.pp_size - 1, 0)

    def count_of_leader(count: int) -> int:
        told = torch.tensor([count])
        for group in groups:
            distributed.broadcast(told, leader, group=group)
        return int(told.item())

    return count_of_leader


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text("".join(lines), encoding="utf-8")
    fresh.replace(path)
