"""The sections of `study.toml` as frozen models.

A wrong field is reported with a fault and a remedy.
"""

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from gpuyard.domain import units
from gpuyard.domain.errors import InvalidInputError, NotFoundError, quoted
from gpuyard.domain.validation import parse_model

FILE = "study.toml"
Variant = Literal["2k", "4k"]
VARIANTS: tuple[Variant, ...] = ("2k", "4k")
# Eight prompts of 2048 tokens are the 5 GiB of KV cache that the memory formula gives a
# 70B model (S3-50).
BUDGETS: dict[Variant, int] = {"2k": 2048, "4k": 4096}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GRES = re.compile(r"[\w.-]+(:[\w.-]+)?")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d{1,3}):(\d{2}):(\d{2})")


def _line(value: str) -> str:
    """What becomes part of a script's line."""
    if not value.isprintable():
        raise ValueError(
            f"{quoted(value)} holds a line break or a control character; write one line"
            " of text"
        )
    return value


def _gres(value: str) -> str:
    if not value:
        return value
    if not _GRES.fullmatch(value):
        raise ValueError(
            f'{quoted(value)} is no kind of GPU; write gpu, gpu:TYPE, or "" for none'
        )
    if re.fullmatch(r"\d{1,2}", value.rpartition(":")[2]):
        raise ValueError(
            f"{quoted(value)} names a number of GPUs, which gpus_per_node tells; write"
            " gpu or gpu:TYPE"
        )
    return value


def _variable(value: str) -> str:
    # The value may be the key itself, put here by mistake, so it is not repeated.
    if value and not _NAME.fullmatch(value):
        raise ValueError(
            "is not the name of an environment variable; name the variable, never write"
            " the key itself"
        )
    return value


def _duration(value: Any) -> float:
    """Seconds from `3600`, `"2h"` and Slurm's own `"[D-]HH:MM:SS"`."""
    match = _CLOCK.fullmatch(value.strip()) if isinstance(value, str) else None
    if match:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    try:
        return units.seconds(value)
    except ValueError:
        raise ValueError(
            f"{quoted(value)} is not a time; write HH:MM:SS, seconds, or a duration"
            " such as 2h"
        ) from None


def _address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"{quoted(value)} is no address; write one such as"
            " https://api.openai.com/v1"
        )
    if parts.username or parts.password or parts.query:
        raise ValueError(
            "holds a password or a query; put the key into the variable that"
            " api_key_env names"
        )
    return value.rstrip("/")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


def _plain(value: Any) -> Any:
    if not isinstance(value, str | bool | int | float):
        raise ValueError(
            f"{quoted(str(value))} is not a single value; write a text, a number, true"
            " or false"
        )
    return value


def _not_empty(rates: tuple[float, ...]) -> tuple[float, ...]:
    if not rates:
        raise ValueError("is empty; write requests per second, such as [1, 2]")
    return rates


def _distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(values))


Line = Annotated[str, AfterValidator(_line)]
Words = Annotated[str, Field(min_length=1), AfterValidator(_line)]
# Part of folders' names, and of plots.
Called = Annotated[str, Field(max_length=100), AfterValidator(_line)]
Lines = tuple[Line, ...]
Seconds = Annotated[float, BeforeValidator(_duration), Field(gt=0)]
Values = Annotated[
    tuple[PositiveInt, ...], BeforeValidator(_listed), AfterValidator(_distinct)
]
Engine = Literal["torch", "vllm", "vllm_server", "sglang", "tensorrt_llm", "deepspeed"]
OptionName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Option = Annotated[str | bool | int | float, BeforeValidator(_plain)]
Share = Annotated[float, Field(gt=0, le=1)]
Heat = Annotated[float, Field(ge=0)]


class StudySection(BaseModel):
    """A section of the file, which refuses unknown keys and cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ModelSection(StudySection):
    """The model that the cluster runs. `path` is a folder as Hugging Face writes it."""

    name: Words
    path: Path
    short_name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*$", max_length=60)
    ] = ""

    @model_validator(mode="after")
    def _shorten(self) -> Self:
        if not self.short_name:
            object.__setattr__(self, "short_name", short_name(self.name))
        return self


class PromptsSection(StudySection):
    """Where the prompts are.

    `budgets` are tokens by variant; `count` is the number of prompts in each file.
    """

    folder: Path = Path("data")
    budgets: dict[Variant, PositiveInt] = Field(
        default_factory=dict[Variant, int], validate_default=True
    )
    count: PositiveInt = 20
    truth: Path | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        object.__setattr__(self, "budgets", BUDGETS | self.budgets)
        return self


class BaselineSection(StudySection):
    """The endpoint whose answers the cluster's are compared with.

    The API key is read from the environment variable `api_key_env`.
    """

    base_url: Annotated[str, AfterValidator(_address)]
    model: Words
    # Another name that the endpoint gives to that model in its answers.
    answers_as: Line = ""
    # `chat` lets the endpoint put the model's marks around a prompt, `completions`
    # sends it as the cluster gets it.
    api: Literal["chat", "completions"] = "chat"
    api_key_env: Annotated[str, AfterValidator(_variable)] = "OPENAI_API_KEY"
    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None
    concurrency: PositiveInt = 4
    max_tokens: PositiveInt = 256
    temperature: Heat = 0.0
    timeout_s: Seconds = 120.0
    retries: NonNegativeInt = 5
    # How often each prompt is asked. Answers that differ show the endpoint's noise.
    repeats: PositiveInt = 1


class GenerationSection(StudySection):
    """How the cluster generates.

    `temperature` 0 is greedy, `top_k` 0 takes all tokens, `micro_batches` 1 is none.
    """

    engine: Engine = "torch"
    max_new_tokens: PositiveInt = 256
    batch_size: PositiveInt = 4
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    temperature: Heat = 0.0
    top_p: Share = 1.0
    top_k: NonNegativeInt = 0
    seed: NonNegativeInt = 0
    micro_batches: PositiveInt = 1
    # How often each job answers all prompts, each time in other batches.
    repeats: PositiveInt = 1
    ignore_eos: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    profiler: Literal["none", "torch", "nsys", "perf"] = "none"


class LoadSection(StudySection):
    """Requests that come one by one at `rates` per second, besides the batches.

    At each rate there are `requests`, drawn with `seed`. Goodput counts those that keep
    the limits.
    """

    rates: Annotated[tuple[PositiveFloat, ...], AfterValidator(_not_empty)]
    requests: PositiveInt = 100
    seed: NonNegativeInt = 0
    ttft_limit_ms: PositiveFloat | None = None
    tpot_limit_ms: PositiveFloat | None = None


class SlurmSection(StudySection):
    """What each job asks Slurm for beside its nodes, and its environment.

    `time_limit` is in seconds.
    """

    partition: Line = ""
    account: Line = ""
    constraint: Line = ""
    time_limit: Seconds = 3600.0
    gres: Annotated[str, AfterValidator(_gres)] = "gpu"
    gpu_memory_gb: PositiveFloat | None = None
    modules: Lines = ()
    environment: dict[
        Annotated[str, AfterValidator(_variable), Field(min_length=1)], Line
    ] = Field(default_factory=dict[str, str])
    nccl_debug: Line = "WARN"
    apptainer_image: Line = Field(
        default="", validation_alias=AliasChoices("apptainer_image", "appainter_image")
    )
    binds: Lines = ()
    python: Words = "python3"
    launcher: Literal["srun", "deepspeed", "torchrun"] = "srun"
    sbatch: Lines = ()
    # How many jobs are submitted at once. Slurm runs those beside each other that fit.
    max_parallel: PositiveInt = 1


class KubernetesSection(StudySection):
    """What the pods of a study have; only for `--provider kubernetes`.

    `image` has bash and the interpreter `slurm.python`. `volumes` are claims
    (`pvc:NAME/FOLDER`) by the paths where pods see them, besides those that the
    provider's settings mount. `cpus` and `memory_gb` are limits of each pod.
    """

    image: Words
    volumes: dict[Words, Words] = Field(default_factory=dict[str, str])
    cpus: PositiveFloat | None = None
    memory_gb: PositiveFloat | None = None
    # Such as a100-80gb; without one, any GPU will do.
    gpu_class: Line = ""


class StrategySection(StudySection):
    """One way of splitting the model.

    Missing values follow from `kind`. Lists are swept: each value is one job.
    """

    kind: Literal[
        "tensor_across_nodes",
        "pipeline_across_nodes",
        "tensor_single_node",
        "hybrid",
        "custom",
    ]
    name: Called = ""
    nodes: PositiveInt | None = None
    gpus_per_node: PositiveInt | None = None
    tp: PositiveInt | None = None
    pp: PositiveInt | None = None
    dp: PositiveInt = 1
    batch_size: Values = ()
    micro_batches: Values = ()
    retries: NonNegativeInt = 0
    # Without one, it is that of the section [generation].
    engine: Engine | None = None
    # What else the engine is told, by its own names.
    engine_options: dict[
        Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Option
    ] = Field(default_factory=dict[str, Option])
    # How the engine rounds the weights when it loads them, such as fp8.
    quantization: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]*$", max_length=40)] = (
        ""
    )
    # A folder with rounded weights of the same model.
    quantized_model: Path | None = None


class ReportSection(StudySection):
    """How strategies are ranked and reported.

    `latency_limit_ms` limits the p90 latency. With a price, costs are reported; with
    `embedding_model` (a folder for sentence-transformers), similarities of meaning.
    """

    objective: Literal["cheapest", "fastest", "throughput", "balanced"] = "cheapest"
    latency_limit_ms: PositiveFloat | None = None
    price_per_gpu_hour: PositiveFloat | None = None
    rank_quantized: bool = False
    currency: Words = "USD"
    embedding_model: Path | None = None


def _some(values: tuple[StrategySection, ...]) -> tuple[StrategySection, ...]:
    if not values:
        raise ValueError("is empty; add a table [[strategies]] with a kind")
    return values


class StudyFile(StudySection):
    """The tables of `study.toml`."""

    model: ModelSection
    prompts: PromptsSection = PromptsSection()
    baseline: BaselineSection | None = None
    generation: GenerationSection = GenerationSection()
    load: LoadSection | None = None
    slurm: SlurmSection = SlurmSection()
    kubernetes: KubernetesSection | None = None
    strategies: Annotated[tuple[StrategySection, ...], AfterValidator(_some)]
    report: ReportSection = ReportSection()


class Study(StudyFile):
    """A study: the sections of its file, its folder and the file's hash.

    Relative paths have been joined with the folder.
    """

    directory: Path
    sha256: str

    @property
    def results(self) -> Path:
        """The folder of the tables."""
        return self.directory / "results"

    @property
    def runs(self) -> Path:
        """The folder of the runs."""
        return self.directory / "runs"

    @property
    def baseline_table(self) -> Path:
        """The baseline's answers, once there are any."""
        return self.results / "baseline_prompts.parquet"


def load_study(directory: Path) -> Study:
    """Read the study in a folder.

    NotFoundError when there is none, InvalidInputError when its file is wrong.
    """
    directory = _at_home(directory).absolute()
    try:
        raw = (directory / FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"There is no {FILE} in {directory}.",
            "`gpuyard study init DIR` writes one.",
        ) from None
    except OSError as error:
        raise InvalidInputError.of(
            FILE, f"cannot be read: {error.strerror}", "make it a file you may read"
        ) from None
    file = parse_model(StudyFile, _toml(raw))
    sections: dict[str, Any] = {
        name: getattr(file, name) for name in StudyFile.model_fields
    }
    model = file.model.model_copy(update={"path": _on(directory, file.model.path)})
    truth = file.prompts.truth and _on(directory, file.prompts.truth)
    prompts = file.prompts.model_copy(
        update={"folder": _on(directory, file.prompts.folder), "truth": truth}
    )
    embedding_model = file.report.embedding_model and _on(
        directory, file.report.embedding_model
    )
    report = file.report.model_copy(update={"embedding_model": embedding_model})
    strategies = tuple(_with_weights(directory, one) for one in file.strategies)
    found = {
        "model": model,
        "strategies": strategies,
        "prompts": prompts,
        "report": report,
        "directory": directory,
        "sha256": hashlib.sha256(raw).hexdigest(),
    }
    return Study.model_construct(None, **(sections | found))


def _with_weights(directory: Path, strategy: StrategySection) -> StrategySection:
    folder = strategy.quantized_model and _on(directory, strategy.quantized_model)
    return strategy.model_copy(update={"quantized_model": folder})


def _toml(raw: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise InvalidInputError.of(
            FILE, f"is not UTF-8 at byte {error.start}", "save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError.of(
            FILE, f"is not TOML: {error}", "correct it there"
        ) from None


def _on(directory: Path, path: Path) -> Path:
    return directory / _at_home(path)


def _at_home(path: Path) -> Path:
    """Expand `~`; a path with the name of an unknown user stays as it is."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def short_name(name: str) -> str:
    """Shorten a model's name: `meta-llama/Llama-3.1-8B-Instruct` becomes `llama8b`."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    family = re.match(r"[a-z]+", last)
    size = re.search(r"(?<![a-z0-9.])(\d+(?:\.\d+)?[bm])(?![a-z0-9])", last)
    if family and size:
        return family[0] + size[1]
    return re.sub(r"[^a-z0-9.-]+", "-", last).strip("-.")[:60] or "model"


def plain_name(model: str) -> str:
    """Return a model's name in lower case, without owner, folder and revision."""
    return model.lower().rstrip("/").rpartition("/")[2].partition("@")[0]
