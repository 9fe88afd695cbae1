"""Estimate how much memory a GPU needs for its part of a model.

All figures are GiB per GPU, for the GPU that needs most: the stage with most layers and
an embedding. There are two estimates: the formula of the requirements document, and one
from the model's sizes.
"""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from gpuyard.studies.model_folder import ModelShape
from gpuyard.studies.strategies import ParallelismStrategy
from gpuyard.studies.study import Variant

GIB = 1024**3
_ROUNDED_BYTES = {"fp8": 1.0, "int8": 1.0, "w8a8_int8": 1.0, "w8a8_fp8": 1.0}
_LEAST_BYTES = 0.5
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
# The document's figures (S3-50) for a 70B model in 16 bits: KV cache by variant,
# activations, CUDA and NCCL.
_DOCUMENT_KV: dict[Variant, Decimal] = {"2k": Decimal(5), "4k": Decimal(10)}
_DOCUMENT_ACTIVATIONS = Decimal(2)
_DOCUMENT_OVERHEAD = Decimal(6)
# A CUDA context with its libraries' workspaces and NCCL's buffers, as one process of
# PyTorch shows on a recent GPU.
OVERHEAD_GIB = 2.0


def document_estimate(parameters: float, tp: int, pp: int, variant: Variant) -> float:
    """Apply the document's formula (S3-50): (weights + KV) / (tp × pp) + 2 + 6 GiB.

    Weights take 2 bytes per parameter, rounded to a tenth of a GiB. The result is
    rounded to a hundredth.
    """
    weights = (Decimal(parameters) * 2 / GIB).quantize(Decimal("0.1"), ROUND_HALF_UP)
    split = (weights + _DOCUMENT_KV[variant]) / (tp * pp)
    total = split + _DOCUMENT_ACTIVATIONS + _DOCUMENT_OVERHEAD
    return float(total.quantize(Decimal("0.01"), ROUND_HALF_UP))


@dataclass(frozen=True, slots=True)
class GenerationLoad:
    """The size of a batch: `batch_size` rows of `length` tokens, prompt and answer.

    `caches_latents` tells whether the engine keeps the small vectors of a model with
    latent attention in place of the keys and values that it makes of them.
    """

    batch_size: int
    length: int
    micro_batches: int = 1
    precision: str = "bf16"
    quantization: str = ""
    caches_latents: bool = False

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight. Where it is not known how they are rounded: the least."""
        if not self.quantization:
            return BYTES[self.precision]
        return _ROUNDED_BYTES.get(self.quantization, _LEAST_BYTES)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """GiB on the fullest GPU, by what takes them."""

    weights: float
    kv_cache: float
    activations: float
    overhead: float = OVERHEAD_GIB

    @property
    def total(self) -> float:
        """All together."""
        return self.weights + self.kv_cache + self.activations + self.overhead


def estimate(
    shape: ModelShape, strategy: ParallelismStrategy, load: GenerationLoad
) -> MemoryEstimate:
    """The memory of the fullest GPU of a layout under a load."""
    each = BYTES[load.precision]
    layers = -(-shape.layers // strategy.pp_size)
    # The first stage embeds, the last one has the head.
    outer = 1 if shape.tied or strategy.pp_size > 1 else 2
    weights = (
        (layers * shape.layer_parameters + outer * shape.embedding_parameters)
        * load.weight_bytes
        / strategy.tp_size
    )
    values = shape.cached_values(strategy.tp_size, is_latent=load.caches_latents)
    token = layers * values * each
    return MemoryEstimate(
        weights=weights / GIB,
        kv_cache=load.batch_size * load.length * token / GIB,
        activations=_activations(shape, strategy, load) / GIB,
    )


def _activations(
    shape: ModelShape, strategy: ParallelismStrategy, load: GenerationLoad
) -> float:
    """Return the bytes of activations at the peak of reading a micro-batch.

    These are one layer's intermediates and the scores of the last tokens. Without a
    pipeline there are no micro-batches.
    """
    rows = (
        -(-load.batch_size // load.micro_batches)
        if strategy.pp_size > 1
        else load.batch_size
    )
    wide = 4 * shape.hidden + 3 * shape.intermediate // strategy.tp_size
    return rows * (load.length * wide * BYTES[load.precision] + shape.vocabulary * 4)
