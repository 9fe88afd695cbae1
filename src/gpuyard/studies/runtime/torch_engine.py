# pyright: basic, reportMissingImports=false
"""The engine `torch`: a decoder with tensor and pipeline parallelism."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from .checkpoint_reader import CheckpointReader
from .communicator import Communicator
from .decoder_shape import read_shape
from .experiment import Experiment
from .generated_answer import GeneratedAnswer
from .micro_batch import MicroBatch
from .pipeline_stage import PipelineStage
from .prompts import Prompt
from .sampling import TokenSampler
from .sequences import CacheLayout, Sequences, split
from .weights import load_model_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class TorchEngine:
    """One rank of a model."""

    name = "torch"
    version = torch.__version__

    def __init__(self, experiment: Experiment, communicator: Communicator) -> None:
        self._experiment = experiment
        self._communicator = communicator
        self._mesh = communicator.mesh
        self._sampler = TokenSampler(experiment, communicator)
        self._dtype = DTYPES[experiment.precision]
        self.bytes_read = 0
        self.bytes_share = 0

    def load(self) -> None:
        """Read this rank's weights.

        Raises `RunError` when the model cannot be used, or not in this layout.
        """
        experiment = self._experiment
        mesh = self._mesh
        shape = read_shape(experiment.model_path)
        shape.check_layout(mesh.tp_size, mesh.pp_size)
        checkpoint = CheckpointReader(experiment.model_path, mesh.tp_rank, mesh.tp_size)
        weights = load_model_weights(shape, mesh, checkpoint, self._place)
        self.bytes_read = checkpoint.bytes_read
        self.bytes_share = round(checkpoint.bytes_share)
        self._stage = PipelineStage(shape, weights, self._communicator)
        like = torch.empty(0, dtype=self._dtype, device=self._communicator.device)
        self._cache_layout = CacheLayout(
            shape, len(weights.layers), shape.kv_heads // mesh.tp_size, like
        )
        self._eos_ids = frozenset() if experiment.ignore_eos else shape.eos_ids

    def warm_up(self) -> None:
        """Generate two tokens, so that communicators, kernels and threads exist."""
        self._generate(
            [Prompt("warm-up", "", (0, 0))], 2, frozenset(), time.perf_counter()
        )
        self._communicator.clock.seconds()

    def generate(self, batch: Sequence[Prompt]) -> list[GeneratedAnswer]:
        """Return the answers to a batch, on every rank of the replica.

        Only the times of the last stage are exact.
        """
        return self._generate(
            batch, self._experiment.max_new_tokens, self._eos_ids, time.perf_counter()
        )

    def communication_s(self) -> float:
        """Return the seconds of communicating with other ranks and waiting for them."""
        return self._communicator.clock.seconds()

    def _place(self, tensor: Tensor, *, is_exact: bool = False) -> Tensor:
        dtype = torch.float32 if is_exact else self._dtype
        return tensor.to(self._communicator.device, dtype)

    def _generate(
        self, batch: Sequence[Prompt], limit: int, eos_ids: frozenset[int], began: float
    ) -> list[GeneratedAnswer]:
        parts = split(
            batch, self._experiment.micro_batches if self._mesh.pp_size > 1 else 1
        )
        micro_batches = [
            MicroBatch(
                tag,
                Sequences(part, limit, eos_ids, self._cache_layout, began),
                self._stage,
                self._sampler,
                self._communicator,
            )
            for tag, part in enumerate(parts)
        ]
        with torch.inference_mode():
            for _ in range(limit):
                for micro_batch in micro_batches:
                    micro_batch.advance()
            for micro_batch in micro_batches:
                micro_batch.finish()
        return [
            answer
            for micro_batch in micro_batches
            for answer in micro_batch.sequences.answers
        ]
