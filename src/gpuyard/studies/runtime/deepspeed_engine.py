# pyright: basic, reportMissingImports=false
"""The engine `deepspeed`: transformers' model, split over all ranks by AutoTP."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from .communicator import Communicator
from .decoder_shape import read_eos_ids
from .errors import RunError
from .experiment import Experiment
from .generated_answer import GeneratedAnswer, TokenConfidence
from .prompts import Prompt
from .sampling import TokenSampler

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class DeepSpeedEngine:
    """One rank of `deepspeed.init_inference`.

    Every rank reads the whole model before it keeps its part.
    """

    name = "deepspeed"
    version = ""

    def __init__(self, experiment: Experiment, communicator: Communicator) -> None:
        self._experiment = experiment
        self._device = communicator.device
        self._sampler = TokenSampler(
            experiment, Communicator.alone(communicator.device)
        )
        self.bytes_read = self.bytes_share = 0

    def load(self) -> None:
        """Load the model and split it.

        Raises `RunError` for a layout that is not tensor parallelism alone.
        """
        experiment = self._experiment
        if experiment.pp_size > 1 or experiment.dp_size > 1:
            raise RunError(
                "the engine deepspeed is tensor-parallel only, but the layout is"
                f" {experiment.layout}"
            )
        try:
            import deepspeed
            from transformers import AutoModelForCausalLM, GenerationConfig
        except ImportError as error:
            raise RunError(
                f"the engine deepspeed cannot be imported here: {error}"
            ) from error
        self.version = deepspeed.__version__
        dtype = DTYPES[experiment.precision]
        model = AutoModelForCausalLM.from_pretrained(
            experiment.model_path, dtype=dtype, local_files_only=True
        ).eval()
        # The model's own would bring its penalties and cuts along, which no other
        # engine has.
        model.generation_config = GenerationConfig(pad_token_id=0)
        self.bytes_read = sum(
            path.stat().st_size for path in experiment.model_path.glob("*.safetensors")
        )
        self.bytes_share = self.bytes_read // experiment.tp_size
        if experiment.tp_size > 1:
            _join(deepspeed, self._device)
            # Layers of its own kernels are for other models; AutoTP cuts transformers'
            # layers as they are.
            parallel = {"tp_size": experiment.tp_size}
            exact = _exact_buffers(model)
            model = deepspeed.init_inference(
                model,
                tensor_parallel=parallel,
                dtype=dtype,
                replace_with_kernel_inject=False,
            ).module
            _restore(model, exact)
        self._model = model.to(self._device)
        self._eos_ids = (
            frozenset()
            if experiment.ignore_eos
            else read_eos_ids(experiment.model_path)
        )

    def warm_up(self) -> None:
        """Generate two tokens."""
        self._generate([Prompt("warm-up", "", (0, 0))], 2, frozenset())

    def generate(self, batch: Sequence[Prompt]) -> list[GeneratedAnswer]:
        """Return the answers to a batch."""
        return self._generate(batch, self._experiment.max_new_tokens, self._eos_ids)

    def communication_s(self) -> float | None:
        """Return None, because DeepSpeed does not measure this."""
        return None

    def _generate(
        self, batch: Sequence[Prompt], limit: int, eos_ids: frozenset[int]
    ) -> list[GeneratedAnswer]:
        longest = max(len(prompt.token_ids) for prompt in batch)
        pads = [longest - len(prompt.token_ids) for prompt in batch]
        ids = [
            [0] * pad + list(prompt.token_ids)
            for pad, prompt in zip(pads, batch, strict=True)
        ]
        real = [[0] * pad + [1] * (longest - pad) for pad in pads]
        listener = _Listener(
            [GeneratedAnswer(prompt) for prompt in batch], eos_ids, self._sampler
        )
        with torch.inference_mode():
            self._model.generate(
                torch.tensor(ids, device=self._device),
                attention_mask=torch.tensor(real, device=self._device),
                max_new_tokens=limit,
                do_sample=False,
                logits_processor=[listener.choose],
                stopping_criteria=[listener.stop],
            )
        return listener.answers


class _Listener:
    """Chooses tokens in transformers' loop, and records the time of each.

    The choice is the same as in the engine `torch`.
    """

    def __init__(
        self,
        answers: list[GeneratedAnswer],
        eos_ids: frozenset[int],
        sampler: TokenSampler,
    ) -> None:
        self.answers = answers
        self._eos_ids = eos_ids
        self._sampler = sampler
        self._step = 0
        self._confidence: Sequence[TokenConfidence | None] = ()
        self._began = time.perf_counter()

    def choose(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores in which only the chosen token is possible."""
        choice = self._sampler.choose(
            scores.float(),
            [answer.prompt.prompt_id for answer in self.answers],
            self._step,
        )
        self._confidence = choice.confidence or [None] * len(self.answers)
        tokens = choice.tokens[:, None]
        return torch.full_like(scores, float("-inf")).scatter_(1, tokens, 0.0)

    def stop(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Record the new tokens, and return which answers are done."""
        self._step += 1
        now = time.perf_counter() - self._began
        chosen = ids[:, -1].tolist()
        for answer, token, how_sure in zip(
            self.answers, chosen, self._confidence, strict=True
        ):
            answer.add(token, now, self._eos_ids, how_sure)
        return torch.tensor([answer.done for answer in self.answers], device=ids.device)


def _exact_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that a model keeps in float32, such as rotary frequencies."""
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if buffer.dtype == torch.float32
    }


def _restore(model: torch.nn.Module, exact: dict[str, torch.Tensor]) -> None:
    """Give a model its exact buffers back: DeepSpeed rounds them with the weights.

    A frequency that is rounded to 16 bits is off by more with every position.
    """
    for name, buffer in exact.items():
        home, _, last = name.rpartition(".")
        setattr(model.get_submodule(home), last, buffer)


def _join(deepspeed: Any, device: torch.device) -> None:
    """Give DeepSpeed the existing process group.

    On CPUs it would first compile an all-reduce in shared memory for a minute, which
    then crashes under some launchers (0.19). The one of gloo is good enough.
    """
    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("nccl" if device.type == "cuda" else "gloo")
