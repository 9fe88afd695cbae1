"""Models that can be resident: what each needs, how its server is started, and the
server's paths.

A model server is an OpenAI-compatible HTTP server on a port that gpuyard chooses; it
listens on this host only.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from gpuyard.domain import units
from gpuyard.domain.spec_values import SecretName
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.task_types import LlmTaskType

Seconds = Annotated[float, BeforeValidator(units.seconds), Field(gt=0)]
Gigabytes = Annotated[float, BeforeValidator(units.memory_gb), Field(gt=0)]


BOOT_TIMES: Mapping[str, float] = {"qwen2.5:14b": 160.0, "qwen2.5:7b": 120.0}
"""How long models take to boot (seconds), by the seed document."""


class Engine(StrEnum):
    """The program that serves a model.

    `command` is any other program, started with `{port}` and perhaps `{gpus}` in its
    arguments.
    """

    TRANSFORMERS = "transformers"
    VLLM = "vllm"
    OLLAMA = "ollama"
    COMMAND = "command"


class ModelSpec(StrictModel):
    """A model. `source`: a folder, or the engine's name for it (default: the model's
    name).

    `memory_gb`: the GPU memory that it takes, on each GPU if it is split over `gpus` of
    one machine. `slots`: how many requests it answers at once. `boot_s` and `unload_s`
    are expected times until they are measured; a server that is not healthy after
    `boot_timeout_s` is given up. `program`: the path of the engine's program, if that
    is not on the PATH. `args`: more arguments for it. `pinned`: it is always loaded and
    never evicted. `secrets`: see `JobSpec`. `task_types`: the types of tasks that it is
    for; without them, it is for the types that no other model is for. `brain`: it is
    the brain's model, which goes to the brain's GPUs first. `joined`: it may also run
    on machines that have joined, which have its program and its files at these paths.

    A model that can sleep then holds no GPU memory, and wakes in about `wake_s`: vLLM
    with a `sleep_level` (1: its weights go to the host's memory; 2: they are read
    again), Ollama with level 1 (it unloads them), a `command` with the paths `sleep`,
    `wake` and `asleep`, the last of which answers {"is_sleeping": true} or false.
    """

    engine: Engine = Engine.COMMAND
    source: str | None = None
    memory_gb: Gigabytes
    gpus: int = Field(default=1, ge=1, le=64)
    slots: int = Field(default=1, ge=1, le=10_000)
    boot_s: Seconds = 120.0
    unload_s: Seconds = 5.0
    boot_timeout_s: Seconds = 1800.0
    command: tuple[str, ...] = ()
    program: str | None = None
    args: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, SecretName] = Field(default_factory=dict)
    health: str = Field(default="/health", pattern="^/")
    warm_up: bool = True
    pinned: bool = False
    brain: bool = False
    joined: bool = False
    task_types: tuple[LlmTaskType, ...] = ()
    wake_s: Seconds = 6.0
    sleep_level: int = Field(default=0, ge=0, le=2)
    sleep: str | None = Field(default=None, pattern="^/")
    wake: str | None = Field(default=None, pattern="^/")
    asleep: str | None = Field(default=None, pattern="^/")

    @model_validator(mode="after")
    def _command_belongs_to_its_engine(self) -> Self:
        if (self.engine is Engine.COMMAND) != bool(self.command):
            fault = "is missing" if self.engine is Engine.COMMAND else "does not belong"
            raise ValueError(
                f"@command@{fault} for the engine {self.engine}; give it with engine ="
                " 'command' only"
            )
        if self.command and not any("{port}" in word for word in self.command):
            raise ValueError(
                "@command@does not say {port} anywhere; the server must listen on the"
                " port it is given"
            )
        return self

    @model_validator(mode="after")
    def _sleep_belongs_to_its_engine(self) -> Self:
        if self.sleep_level > {Engine.VLLM: 2, Engine.OLLAMA: 1}.get(self.engine, 0):
            cure = "for the engine command give sleep, wake and asleep"
            raise ValueError(
                f"@sleep_level@is vLLM's (1 or 2) and Ollama's (1); {cure}"
            )
        paths = [self.sleep, self.wake, self.asleep]
        if any(paths) and (self.engine is not Engine.COMMAND or not all(paths)):
            raise ValueError(
                "@sleep@belongs together with wake and asleep, for the engine command;"
                " give all three"
            )
        return self

    @model_validator(mode="after")
    def _one_gpu_to_sleep_on(self) -> Self:
        if self.gpus > 1 and self.sleeps:
            raise ValueError(
                "@gpus@is more than one for a model that sleeps; give one of the two,"
                " not both"
            )
        return self

    @property
    def sleeps(self) -> bool:
        """True when its server can be put to sleep."""
        return bool(self.sleep_level or self.sleep)


class ServerLaunch(BaseModel):
    """How to start a model's server, how to check its health, and its name for the
    model.

    `sleep`, `wake` (for POST, with these bodies) and `asleep` (for GET) are its paths,
    empty if it cannot sleep.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    health: str
    served_name: str
    sleep: str = ""
    wake: str = ""
    asleep: str = ""
    sleep_body: dict[str, Any] = Field(default_factory=dict)
    wake_body: dict[str, Any] = Field(default_factory=dict)

    def sleeping(self, answer: dict[str, Any]) -> bool:
        """Whether the answer at `asleep` says that the model sleeps, or lists it as not
        loaded; KeyError, TypeError.
        """
        if "models" not in answer:
            return bool(answer["is_sleeping"])
        names = {self.served_name, f"{self.served_name}:latest"}
        return not any(loaded["name"] in names for loaded in answer["models"])


def launch(name: str, spec: ModelSpec, port: int) -> ServerLaunch:
    """How to start the server of model `name` on `port`."""
    return _ENGINES[spec.engine](name, spec, port)


def _transformers(name: str, spec: ModelSpec, port: int) -> ServerLaunch:
    source = spec.source or name
    words = (
        spec.program or "transformers",
        "serve",
        source,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *spec.args,
    )
    return ServerLaunch(
        command=words,
        environment={**spec.environment},
        health="/health",
        served_name=source,
    )


def _vllm(name: str, spec: ModelSpec, port: int) -> ServerLaunch:
    words = (
        spec.program or "vllm",
        "serve",
        spec.source or name,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--served-model-name",
        name,
        *_split(spec),
        *spec.args,
    )
    if not spec.sleep_level:
        return ServerLaunch(
            command=words,
            environment={**spec.environment},
            health="/health",
            served_name=name,
        )
    # vLLM needs an option and a variable for this: the paths exist in its development
    # mode only.
    environment = {"VLLM_SERVER_DEV_MODE": "1", **spec.environment}
    return ServerLaunch(
        command=(*words, "--enable-sleep-mode"),
        environment=environment,
        health="/health",
        served_name=name,
        sleep=f"/sleep?level={spec.sleep_level}",
        wake="/wake_up",
        asleep="/is_sleeping",
    )


def _split(spec: ModelSpec) -> tuple[str, ...]:
    return ("--tensor-parallel-size", str(spec.gpus)) if spec.gpus > 1 else ()


def _ollama(name: str, spec: ModelSpec, port: int) -> ServerLaunch:
    spread = {"OLLAMA_SCHED_SPREAD": "1"} if spec.gpus > 1 else {}
    environment = {
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "OLLAMA_KEEP_ALIVE": "-1",
        **spread,
        **spec.environment,
    }
    words = (spec.program or "ollama", "serve", *spec.args)
    source = spec.source or name
    start = ServerLaunch(
        command=words, environment=environment, health="/", served_name=source
    )
    if not spec.sleep_level:
        return start
    # A request without a prompt loads a model, or unloads it at once.
    sleep = {"model": source, "keep_alive": 0}
    wake = {"model": source, "keep_alive": -1}
    return start.model_copy(
        update={
            "sleep": "/api/generate",
            "wake": "/api/generate",
            "asleep": "/api/ps",
            "sleep_body": sleep,
            "wake_body": wake,
        }
    )


def _command(name: str, spec: ModelSpec, port: int) -> ServerLaunch:
    words = tuple(
        word.replace("{port}", str(port)).replace("{gpus}", str(spec.gpus))
        for word in (*spec.command, *spec.args)
    )
    return ServerLaunch(
        command=words,
        environment={**spec.environment},
        health=spec.health,
        served_name=spec.source or name,
        sleep=spec.sleep or "",
        wake=spec.wake or "",
        asleep=spec.asleep or "",
    )


_ENGINES: Mapping[Engine, Callable[[str, ModelSpec, int], ServerLaunch]] = {
    Engine.TRANSFORMERS: _transformers,
    Engine.VLLM: _vllm,
    Engine.OLLAMA: _ollama,
    Engine.COMMAND: _command,
}


def warm_up(served_name: str) -> dict[str, Any]:
    """The body of a first chat request, after which the server has loaded everything
    that it loads lazily.
    """
    return {
        "model": served_name,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
    }


def brain_models(specs: Mapping[str, ModelSpec]) -> frozenset[str]:
    """The brain's models: those that are marked so, else the largest."""
    marked = frozenset(model for model, spec in specs.items() if spec.brain)
    if marked:
        return marked
    sizes = {model: spec.memory_gb * spec.gpus for model, spec in specs.items()}
    largest = max(sizes.values(), default=0.0)
    return frozenset(model for model, size in sizes.items() if size == largest)
