# pyright: basic, reportMissingImports=false
"""Communication between the ranks of a mesh, and the time it takes."""

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from .errors import RunError
from .experiment import Experiment
from .launch import LaunchedProcess, Mesh


def initialize_distributed_environment(
    experiment: Experiment, launch: LaunchedProcess
) -> torch.device:
    """Join the other processes, if any, and return this rank's device.

    Processes communicate by gloo on CPUs and by NCCL on GPUs.
    """
    cuda = experiment.device == "cuda" or (
        experiment.device == "auto" and torch.cuda.is_available()
    )
    if cuda and not torch.cuda.is_available():
        raise RunError("device is cuda, but torch sees no GPU here")
    device = (
        torch.device("cuda", launch.local_rank % torch.cuda.device_count())
        if cuda
        else torch.device("cpu")
    )
    if cuda:
        torch.cuda.set_device(device)
    if launch.world_size > 1 and not distributed.is_initialized():
        launch.export(os.environ)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            timeout=timedelta(seconds=experiment.timeout_s),
        )
    return device


def agree(fault: str | None) -> None:
    """Share the faults of all ranks; raise one `RunError` on all if there are any."""
    if not distributed.is_initialized():
        faults = [fault]
    else:
        faults: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(faults, fault)
    told = {text: rank for rank, text in reversed(list(enumerate(faults))) if text}
    if len(told) == 1 and None not in faults:
        raise RunError(next(iter(told)))
    if told:
        raise RunError(
            "; ".join(sorted(f"rank {rank}: {text}" for text, rank in told.items()))
        )


class CommunicationTimer:
    """Measures the seconds spent in communication.

    On a GPU, events on the device measure the time without waiting for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._events: list[tuple[Any, Any]] = []
        self._seconds = 0.0

    @contextlib.contextmanager
    def communicating(self) -> Iterator[None]:
        """Count the time of what is done inside."""
        if self._cuda:
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            yield
            end.record()
            self._events.append((begin, end))
        else:
            began = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - began

    def seconds(self) -> float:
        """Return all seconds until now."""
        if self._events:
            torch.cuda.synchronize()
            self._seconds += (
                sum(begin.elapsed_time(end) for begin, end in self._events) / 1000
            )
            self._events.clear()
        return self._seconds


class PendingTransfer:
    """A tensor that is being sent or received, and is kept alive until then."""

    def __init__(
        self, tensor: Tensor, works: list[Any], clock: CommunicationTimer
    ) -> None:
        self._tensor = tensor
        self._works = works
        self._clock = clock

    def wait(self) -> Tensor:
        """Wait until the transfer is done, and return the tensor."""
        with self._clock.communicating():
            for work in self._works:
                work.wait()
        return self._tensor


class Communicator:
    """The process groups of one rank: its tensor-parallel peers and its pipeline.

    Hidden states and tokens travel in opposite directions, in separate groups: in one
    NCCL communicator they could block each other for ever.
    """

    def __init__(self, mesh: Mesh, device: torch.device) -> None:
        self.mesh = mesh
        self.device = device
        self.clock = CommunicationTimer(device)
        self._tp = self._hidden = self._tokens = None
        for dp in range(mesh.dp_size):
            for pp in range(mesh.pp_size):
                ranks = [mesh.rank_of(dp, pp, tp) for tp in range(mesh.tp_size)]
                self._tp = (
                    _group(ranks, (dp, pp) == (mesh.dp_rank, mesh.pp_rank)) or self._tp
                )
            for tp in range(mesh.tp_size):
                ranks = [mesh.rank_of(dp, pp, tp) for pp in range(mesh.pp_size)]
                mine = (dp, tp) == (mesh.dp_rank, mesh.tp_rank)
                self._hidden = _group(ranks, mine) or self._hidden
                self._tokens = _group(ranks, mine) or self._tokens

    @classmethod
    def alone(cls, device: torch.device) -> "Communicator":
        """Return the communicator of a rank without peers."""
        return cls(Mesh(0, 0, 0, 1, 1, 1), device)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the tensor-parallel peers, in place."""
        if self._tp is not None:
            with self.clock.communicating():
                distributed.all_reduce(tensor, group=self._tp)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all tensor-parallel peers, in their order."""
        if self._tp is None:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.mesh.tp_size)]
        with self.clock.communicating():
            distributed.all_gather(parts, tensor.contiguous(), group=self._tp)
        return parts

    def send_hidden(self, tensor: Tensor, tag: int) -> PendingTransfer:
        """Send hidden states to the next stage."""
        return self._send(tensor, [self.mesh.pp_rank + 1], self._hidden, tag)

    def expect_hidden(self, tensor: Tensor, tag: int) -> PendingTransfer:
        """Receive hidden states from the previous stage into `tensor`."""
        return self._expect(tensor, self.mesh.pp_rank - 1, self._hidden, tag)

    def send_tokens(self, tensor: Tensor, tag: int) -> PendingTransfer:
        """Send tokens from the last stage to all others."""
        return self._send(tensor, list(range(self.mesh.pp_size - 1)), self._tokens, tag)

    def expect_tokens(self, tensor: Tensor, tag: int) -> PendingTransfer:
        """Receive tokens from the last stage into `tensor`."""
        return self._expect(tensor, self.mesh.pp_size - 1, self._tokens, tag)

    def _rank_of_stage(self, stage: int) -> int:
        return self.mesh.rank_of(self.mesh.dp_rank, stage, self.mesh.tp_rank)

    def _send(
        self, tensor: Tensor, stages: list[int], group: Any, tag: int
    ) -> PendingTransfer:
        with self.clock.communicating():
            works = [
                distributed.isend(tensor, self._rank_of_stage(stage), group, tag)
                for stage in stages
            ]
        return PendingTransfer(tensor, works, self.clock)

    def _expect(
        self, tensor: Tensor, stage: int, group: Any, tag: int
    ) -> PendingTransfer:
        with self.clock.communicating():
            work = distributed.irecv(tensor, self._rank_of_stage(stage), group, tag)
        return PendingTransfer(tensor, [work], self.clock)


def _group(ranks: list[int], mine: bool) -> Any:
    """Create a process group; return it to its members, and None to the others.

    Every rank must call this. A group of one rank is None.
    """
    if len(ranks) == 1:
        return None
    group = distributed.new_group(ranks)
    return group if mine else None
