# pyright: basic, reportMissingImports=false
"""The engine `torch`: a decoder cut over tensor-parallel peers and pipeline stages, with micro-batches in the pipe."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from .answers import Answer
from .checkpoint import Checkpoint
from .choosing import Chooser
from .experiment import Experiment
from .lane import Lane
from .links import Links
from .prompts import Prompt
from .sequences import Room, Sequences, split
from .shape import read_shape
from .stage import Stage
from .weights import load_model_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class TorchEngine:
    """One rank of a model."""

    name = "torch"
    version = torch.__version__

    def __init__(self, experiment: Experiment, links: Links) -> None:
        self._experiment, self._links = experiment, links
        self._mesh = links.mesh
        self._chooser = Chooser(experiment, links)
        self._dtype = DTYPES[experiment.precision]
        self.bytes_read, self.bytes_share = 0, 0

    def load(self) -> None:
        """Read this rank's weights. Raises `RunError` when the model cannot be used, or not in this layout."""
        experiment, mesh = self._experiment, self._mesh
        shape = read_shape(experiment.model_path)
        shape.check_layout(mesh.tp_size, mesh.pp_size)
        checkpoint = Checkpoint(experiment.model_path, mesh.tp_rank, mesh.tp_size)
        weights = load_model_weights(shape, mesh, checkpoint, self._place)
        self.bytes_read, self.bytes_share = checkpoint.bytes_read, round(checkpoint.bytes_share)
        self._stage = Stage(shape, weights, self._links)
        like = torch.empty(0, dtype=self._dtype, device=self._links.device)
        self._room = Room(shape, len(weights.layers), shape.kv_heads // mesh.tp_size, like)
        self._eos_ids = frozenset() if experiment.ignore_eos else shape.eos_ids

    def warm_up(self) -> None:
        """Two tokens, so that no prompt pays for what is made at first use: communicators, kernels, threads."""
        self._generate([Prompt("warm-up", "", (0, 0))], 2, frozenset(), time.perf_counter())
        self._links.clock.seconds()

    def generate(self, batch: Sequence[Prompt]) -> list[Answer]:
        """Answers to a batch, on every rank of the replica; only the times of the last stage are true."""
        return self._generate(batch, self._experiment.max_new_tokens, self._eos_ids, time.perf_counter())

    def communication_s(self) -> float:
        """Seconds spent waiting for and talking to other ranks."""
        return self._links.clock.seconds()

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._links.device, self._dtype)

    def _generate(self, batch: Sequence[Prompt], limit: int, eos_ids: frozenset[int], began: float) -> list[Answer]:
        parts = split(batch, self._experiment.micro_batches if self._mesh.pp_size > 1 else 1)
        lanes = [
            Lane(tag, Sequences(part, limit, eos_ids, self._room, began), self._stage, self._chooser, self._links)
            for tag, part in enumerate(parts)
        ]
        with torch.inference_mode():
            for _ in range(limit):
                for lane in lanes:
                    lane.advance()
            for lane in lanes:
                lane.finish()
        return [answer for lane in lanes for answer in lane.sequences.answers]
