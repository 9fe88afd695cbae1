# pyright: basic, reportMissingImports=false
"""The engine `deepspeed`: transformers' model, cut over all ranks by DeepSpeed's AutoTP."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from .answers import Answer
from .choosing import Chooser
from .errors import RunError
from .experiment import Experiment
from .links import Links
from .prompts import Prompt
from .shape import read_eos_ids

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class DeepSpeedEngine:
    """One rank of `deepspeed.init_inference`. Every rank reads the whole model before it keeps its part."""

    name = "deepspeed"
    version = ""

    def __init__(self, experiment: Experiment, links: Links) -> None:
        self._experiment, self._device = experiment, links.device
        self._chooser = Chooser(experiment, Links.alone(links.device))
        self.bytes_read = self.bytes_share = 0

    def load(self) -> None:
        """Read the model and cut it. Raises `RunError` for another layout than tensor parallelism alone."""
        experiment = self._experiment
        if experiment.pp_size > 1 or experiment.dp_size > 1:
            raise RunError(f"the engine deepspeed is tensor-parallel only, but the layout is {experiment.layout}")
        try:
            import deepspeed
            from transformers import AutoModelForCausalLM, GenerationConfig
        except ImportError as error:
            raise RunError(f"the engine deepspeed cannot be imported here: {error}") from error
        self.version = deepspeed.__version__
        dtype = DTYPES[experiment.precision]
        model = AutoModelForCausalLM.from_pretrained(experiment.model_path, dtype=dtype, local_files_only=True).eval()
        # The model's own would bring its penalties and cuts along, which no other engine has.
        model.generation_config = GenerationConfig(pad_token_id=0)
        self.bytes_read = sum(path.stat().st_size for path in experiment.model_path.glob("*.safetensors"))
        self.bytes_share = self.bytes_read // experiment.tp_size
        if experiment.tp_size > 1:
            _join(deepspeed, self._device)
            # Layers of its own kernels are for other models; AutoTP cuts transformers' layers as they are.
            parallel = {"tp_size": experiment.tp_size}
            model = deepspeed.init_inference(
                model, tensor_parallel=parallel, dtype=dtype, replace_with_kernel_inject=False
            ).module
        self._model = model.to(self._device)
        self._eos_ids = frozenset() if experiment.ignore_eos else read_eos_ids(experiment.model_path)

    def warm_up(self) -> None:
        """Two tokens."""
        self._generate([Prompt("warm-up", "", (0, 0))], 2, frozenset())

    def generate(self, batch: Sequence[Prompt]) -> list[Answer]:
        """Answers to a batch."""
        return self._generate(batch, self._experiment.max_new_tokens, self._eos_ids)

    def communication_s(self) -> float | None:
        """DeepSpeed does not tell."""
        return None

    def _generate(self, batch: Sequence[Prompt], limit: int, eos_ids: frozenset[int]) -> list[Answer]:
        longest = max(len(prompt.token_ids) for prompt in batch)
        pads = [longest - len(prompt.token_ids) for prompt in batch]
        ids = [[0] * pad + list(prompt.token_ids) for pad, prompt in zip(pads, batch, strict=True)]
        real = [[0] * pad + [1] * (longest - pad) for pad in pads]
        listener = _Listener([Answer(prompt) for prompt in batch], eos_ids, self._chooser)
        with torch.inference_mode():
            self._model.generate(
                torch.tensor(ids, device=self._device), attention_mask=torch.tensor(real, device=self._device),
                max_new_tokens=limit, do_sample=False,
                logits_processor=[listener.choose], stopping_criteria=[listener.stop],
            )  # fmt: skip
        return listener.answers


class _Listener:
    """Chooses tokens as the engine `torch` does, in transformers' loop, and takes the time of each."""

    def __init__(self, answers: list[Answer], eos_ids: frozenset[int], chooser: Chooser) -> None:
        self.answers = answers
        self._eos_ids, self._chooser = eos_ids, chooser
        self._step, self._began = 0, time.perf_counter()

    def choose(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores in which the chosen token is the only one left."""
        tokens = self._chooser.choose(scores.float(), [answer.prompt.prompt_id for answer in self.answers], self._step)
        return torch.full_like(scores, float("-inf")).scatter_(1, tokens[:, None], 0.0)

    def stop(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """After each token: who has ended."""
        self._step += 1
        now = time.perf_counter() - self._began
        for answer, token in zip(self.answers, ids[:, -1].tolist(), strict=True):
            answer.add(token, now, self._eos_ids)
        return torch.tensor([answer.done for answer in self.answers], device=ids.device)


def _join(deepspeed: Any, device: torch.device) -> None:
    """Hand DeepSpeed the process group there is. On CPU it would first compile an all-reduce in shared memory, for a
    minute, which then crashes under some launchers (0.19); gloo's serves."""
    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("nccl" if device.type == "cuda" else "gloo")
