"""The command lines of servers with OpenAI's API: vLLM, SGLang and TensorRT-LLM.

Flags are those of vLLM 0.11, SGLang 0.5 and TensorRT-LLM 1.0.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .experiment import Experiment
from .launch import LaunchedProcess

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
HOST = "127.0.0.1"


@dataclass(frozen=True)
class ServerStart:
    """How one node's part of a server is started.

    `port` is where it answers, on the first node only. The nodes meet at `meeting` (a
    host and a port).
    """

    experiment: Experiment
    port: int
    node: int
    meeting: tuple[str, str]

    @classmethod
    def of(
        cls, experiment: Experiment, launch: LaunchedProcess, port: int
    ) -> "ServerStart":
        """Return the start on the node of a launched process."""
        return cls(experiment, port, launch.rank, launch.master)

    @property
    def has_peers(self) -> bool:
        """Whether the server runs on several nodes."""
        return self.experiment.num_nodes > 1


def _vllm(start: ServerStart) -> Iterator[str]:
    experiment = start.experiment
    yield from (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
    yield str(experiment.model_path)
    yield from ("--dtype", DTYPES[experiment.precision])
    yield from ("--seed", str(experiment.seed))
    yield from ("--tensor-parallel-size", str(experiment.tp_size))
    yield from ("--pipeline-parallel-size", str(experiment.pp_size))
    yield from ("--data-parallel-size", str(experiment.dp_size))
    yield from ("--max-num-seqs", str(experiment.batch_size))
    yield "--no-enable-prefix-caching"
    if start.has_peers:
        yield from ("--nnodes", str(experiment.num_nodes))
        yield from ("--node-rank", str(start.node))
        yield from ("--master-addr", start.meeting[0])
        yield from ("--master-port", start.meeting[1])
    if start.node:
        yield "--headless"
    else:
        yield from ("--host", HOST, "--port", str(start.port))
    yield from _flags(experiment.engine_options, "-", "--no-")


def _sglang(start: ServerStart) -> Iterator[str]:
    experiment = start.experiment
    yield from (sys.executable, "-m", "sglang.launch_server")
    yield from ("--model-path", str(experiment.model_path))
    yield from ("--dtype", DTYPES[experiment.precision])
    yield from ("--random-seed", str(experiment.seed))
    yield from ("--tp-size", str(experiment.tp_size))
    yield from ("--pp-size", str(experiment.pp_size))
    yield from ("--dp-size", str(experiment.dp_size))
    yield from ("--max-running-requests", str(experiment.batch_size))
    yield "--disable-radix-cache"
    if start.has_peers:
        yield from ("--nnodes", str(experiment.num_nodes))
        yield from ("--node-rank", str(start.node))
        yield from ("--dist-init-addr", ":".join(start.meeting))
    yield from ("--host", HOST, "--port", str(start.port))
    yield from _flags(experiment.engine_options, "-")


def _tensorrt_llm(start: ServerStart) -> Iterator[str]:
    experiment = start.experiment
    yield from (_beside_python("trtllm-serve"), str(experiment.model_path))
    yield from ("--backend", "pytorch")
    yield from ("--tp_size", str(experiment.tp_size))
    yield from ("--pp_size", str(experiment.pp_size))
    yield from ("--max_batch_size", str(experiment.batch_size))
    yield from ("--host", HOST, "--port", str(start.port))
    yield from _flags(experiment.engine_options, "_")


def _beside_python(name: str) -> str:
    """Return the program of this interpreter's environment, or else its bare name."""
    program = Path(sys.executable).parent / name
    return str(program) if program.exists() else name


def _flags(
    options: Mapping[str, object], between: str, negation: str = ""
) -> Iterator[str]:
    """Turn options into flags: true is a flag alone, false its negation or nothing."""
    for name, value in options.items():
        flag = name.replace("_", between)
        if value is True:
            yield f"--{flag}"
        elif value is False:
            if negation:
                yield f"{negation}{flag}"
        else:
            yield from (f"--{flag}", str(value))


@dataclass(frozen=True)
class ServerKind:
    """A server: its words, and what only it understands in a request.

    `extra` are fields of each request. `version_path` is where it tells its version.
    """

    words: Callable[[ServerStart], Iterator[str]]
    version_path: str
    extra: Mapping[str, object]

    def command(self, start: ServerStart) -> list[str]:
        """Return the command line."""
        return list(self.words(start))


SERVERS: Mapping[str, ServerKind] = {
    # vLLM can tell tokens by their ids, so that they can be compared.
    "vllm_server": ServerKind(_vllm, "/version", {"return_tokens_as_token_ids": True}),
    "sglang": ServerKind(_sglang, "/get_server_info", {}),
    "tensorrt_llm": ServerKind(_tensorrt_llm, "/version", {}),
}
