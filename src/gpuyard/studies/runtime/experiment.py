"""Read and check `exp_config.json`, the description of one strategy."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import RunError

ENGINES = ("torch", "vllm", "vllm_server", "sglang", "tensorrt_llm", "deepspeed")
SERVED = ("vllm_server", "sglang", "tensorrt_llm")
PRECISIONS = ("fp32", "bf16", "fp16")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Experiment:
    """What to run and how.

    `temperature` 0 means greedy, `top_k` 0 and `top_p` 1 keep all tokens. `limit`
    counts prompts of each variant. `repeats` is how often all prompts are answered.
    `timeout_s` limits the wait for another process.
    """

    strategy_id: str
    model_path: Path
    prompt_df_path: Path
    output_root: Path
    profiling_dir: Path
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    num_nodes: int = 1
    batch_size: int = 1
    micro_batches: int = 1
    repeats: int = 1
    max_new_tokens: int = 128
    precision: str = "bf16"
    engine: str = "torch"
    engine_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # Rates (requests per second), requests at each, and a seed; empty for no load.
    load: Mapping[str, Any] = field(default_factory=dict[str, Any])
    device: str = "auto"
    variants: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False
    limit: int | None = None
    profiling_enabled: bool = False
    profiler: str = "torch"
    timeout_s: float = 600.0
    output_shard_pattern: str = "shard_{rank}.jsonl"
    metrics_file: str = "metrics_rank_{rank}.json"

    @property
    def world_size(self) -> int:
        """The number of processes of the layout."""
        return self.tp_size * self.pp_size * self.dp_size

    @property
    def is_served(self) -> bool:
        """Whether the engine is a server."""
        return self.engine in SERVED

    @property
    def layout(self) -> str:
        """The layout for people: tp2·pp1·dp1."""
        return f"tp{self.tp_size}·pp{self.pp_size}·dp{self.dp_size}"

    def shard_path(self, rank: int) -> Path:
        """Return the file of a rank's rows."""
        return (
            self.output_root / "outputs" / self.output_shard_pattern.format(rank=rank)
        )

    def repeats_path(self, rank: int) -> Path:
        """Return the file of a rank's rows of every repeat but the first."""
        return (
            self.output_root / "repeats" / self.output_shard_pattern.format(rank=rank)
        )

    def load_path(self, rank: int) -> Path:
        """Return the file of a rank's requests under load."""
        return self.output_root / "load" / f"load_rank_{rank}.jsonl"

    def metrics_path(self, rank: int) -> Path:
        """Return the file of a rank's metrics, the footer of its shard."""
        return self.output_root / "metrics" / self.metrics_file.format(rank=rank)


def read_experiment(path: Path) -> Experiment:
    """Read `exp_config.json`.

    Raises `RunError` naming the key that is missing or wrong.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise RunError(f"{path} holds no JSON object")
    return _ConfigReader(path, raw).experiment()  # pyright: ignore[reportUnknownArgumentType]


class _ConfigReader:
    """The keys of one file, each by its type."""

    def __init__(self, path: Path, raw: dict[str, Any]) -> None:
        self._path = path
        self._raw = raw

    def experiment(self) -> Experiment:
        root = self._folder("output_root")
        found = Experiment(
            strategy_id=self._text("strategy_id", None),
            model_path=self._folder("model_path"),
            prompt_df_path=self._folder("prompt_df_path"),
            output_root=root,
            profiling_dir=Path(self._text("profiling_dir", str(root / "profiling"))),
            tp_size=self._count("tp_size", 1),
            pp_size=self._count("pp_size", 1),
            dp_size=self._count("dp_size", 1),
            num_nodes=self._count("num_nodes", 1),
            batch_size=self._count("batch_size", 1),
            micro_batches=self._count("micro_batches", 1),
            repeats=self._count("repeats", 1),
            max_new_tokens=self._count("max_new_tokens", 128),
            precision=self._text("precision", "bf16", PRECISIONS),
            engine=self._text("engine", "torch", ENGINES),
            engine_options=dict(self._raw.get("engine_options") or {}),
            load=dict(self._raw.get("load") or {}),
            device=self._text("device", "auto", DEVICES),
            variants=tuple(self._raw.get("variants") or ()),
            temperature=self._number("temperature", 0.0),
            top_p=self._number("top_p", 1.0),
            top_k=self._count("top_k", 0, least=0),
            seed=self._count("seed", 0, least=0),
            ignore_eos=bool(self._raw.get("ignore_eos")),
            limit=None if self._raw.get("limit") is None else self._count("limit", 1),
            profiling_enabled=bool(self._raw.get("profiling_enabled")),
            profiler=self._text("profiler", "torch"),
            timeout_s=self._number("timeout_s", 600.0),
            output_shard_pattern=self._text(
                "output_shard_pattern", "shard_{rank}.jsonl"
            ),
            metrics_file=self._text("metrics_file", "metrics_rank_{rank}.json"),
        )
        stated = self._count("world_size", found.world_size)
        if stated != found.world_size:
            raise self._fault(
                "world_size",
                f"is {stated}, but {found.layout} has {found.world_size} processes",
            )
        return found

    def _fault(self, key: str, fault: str) -> RunError:
        return RunError(f"{self._path}: {key} {fault}")

    def _text(
        self, key: str, default: str | None, choices: tuple[str, ...] = ()
    ) -> str:
        value = self._raw.get(key)
        value = default if value is None else value
        if not isinstance(value, str) or not value:
            raise self._fault(
                key, "is missing" if value is None else f"is {value!r}, not a text"
            )
        if choices and value not in choices:
            raise self._fault(key, f"is {value!r}, not one of {', '.join(choices)}")
        return value

    def _folder(self, key: str) -> Path:
        return Path(self._text(key, None))

    def _number(self, key: str, default: float) -> float:
        value = self._raw.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise self._fault(key, f"is {value!r}, not a number from 0 up")
        return float(value)

    def _count(self, key: str, default: int, least: int = 1) -> int:
        value = self._raw.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._fault(key, f"is {value!r}, not a whole number from {least} up")
        return value
