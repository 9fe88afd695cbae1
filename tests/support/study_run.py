"""A run's folder as the ranks of a study leave it: invented, by rule, so that a test
can work out what must come of it.

Four strategies answer 40 prompts: one alone, one that diverges from it on every fifth
prompt, one that was cut off, and one that ran out of memory.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

RUN = "run_20261123T091500"
_SENTENCE = (
    "the queue holds work until a node has room and then it runs as it was asked to by"
    " who sent it"
)
WORDS = _SENTENCE.split()


@dataclass(frozen=True)
class Layout:
    """A strategy of the invented run.

    `pace_ms` is the time per token, `diverges_every` counts prompts (0: never).
    """

    strategy_id: str
    kind: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    nodes: int = 1
    pace_ms: float = 20.0
    communication: float = 0.1
    diverges_every: int = 0
    batch_size: int = 1

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp


ALONE = Layout(
    "llama8b_tp1_pp1", "tensor_parallel_single_node", pace_ms=40, communication=0
)
TENSOR = Layout(
    "llama8b_tp2_pp1",
    "tensor_parallel_single_node",
    tp=2,
    pace_ms=24,
    communication=0.15,
)
PIPELINE = Layout(
    "llama8b_tp1_pp4",
    "pipeline_parallel_across_nodes",
    pp=4,
    nodes=4,
    pace_ms=22,
    communication=0.3,
    diverges_every=5,
)
HYBRID = Layout("llama8b_tp2_pp2", "hybrid_tensor_pipeline", tp=2, pp=2, nodes=2)


def prompts(
    count: int = 20, variants: Sequence[str] = ("2k", "4k")
) -> list[dict[str, Any]]:
    """Rows of `prompts.parquet`; the baseline answers as ALONE does."""
    return [
        {
            "prompt_id": f"p{number:02}",
            "variant": variant,
            "prompt": f"Question {number} of {variant}",
            "token_budget": 1000 * int(variant[0]),
            "source_file": f"prompts_{variant}.txt",
            "local_completion": text(tokens(number, variant)),
            "local_latency_ms": 900.0 + number,
            "status": "ok",
            "prompt_tokens": 1000 * int(variant[0]) - number,
        }
        for variant in variants
        for number in range(1, count + 1)
    ]


def tokens(number: int, variant: str) -> list[int]:
    """What a prompt is answered with: 16 to 19 tokens."""
    return [
        (number * 7 + place * 3 + len(variant)) % len(WORDS)
        for place in range(16 + number % 4)
    ]


def text(ids: Iterable[int]) -> str:
    """Tokens as words."""
    return " ".join(WORDS[token] for token in ids)


def row(
    layout: Layout, prompt: dict[str, Any], rank: int = 0, batch: int = 0
) -> dict[str, Any]:
    """A result. Where the strategy diverges, it does from its ninth token on."""
    number = int(prompt["prompt_id"][1:])
    ids = tokens(number, prompt["variant"])
    if layout.diverges_every and number % layout.diverges_every == 0:
        ids = ids[:8] + [(token + 1) % len(WORDS) for token in ids[8:]]
    ttft_ms = prompt["token_budget"] * layout.pace_ms / 400
    latency_ms = ttft_ms + layout.pace_ms * len(ids)
    return {
        "prompt_id": prompt["prompt_id"],
        "variant": prompt["variant"],
        "strategy_id": layout.strategy_id,
        "completion": text(ids),
        "latency_ms": latency_ms,
        "tokens_generated": len(ids),
        "ttft_ms": ttft_ms,
        "token_ms": [layout.pace_ms] * len(ids),
        "token_ids": ids,
        "prompt_tokens": prompt["prompt_tokens"],
        "finish_reason": "length",
        "batch": batch,
        "rank": rank,
    }


def metrics(
    layout: Layout, rank: int, rows: Sequence[dict[str, Any]], worked_s: float
) -> dict[str, Any]:
    """A rank's footer; `worked_s` is how long the whole took."""
    generated = sum(one["tokens_generated"] for one in rows)
    return {
        "rank": rank,
        "dp_rank": 0,
        "pp_rank": rank // layout.tp,
        "tp_rank": rank % layout.tp,
        "host": f"node{rank * layout.nodes // layout.world_size + 1}",
        "device": f"cuda:{rank}",
        "gpu_id": rank,
        "gpu_name": "NVIDIA A100-SXM4-40GB",
        "engine": "torch",
        "engine_version": "1",
        "torch_version": "2.13.0",
        "rows": len(rows),
        "complete": True,
        "load_s": 12.5,
        "bytes_read": 16_000_000_000 // layout.world_size,
        "bytes_share": 16_000_000_000 // layout.world_size,
        "peak_memory_bytes": (18 + rank) * 2**30 // layout.world_size,
        "prompts": len(rows),
        "tokens_generated": generated,
        "generate_s": worked_s,
        "tokens_per_s": generated / worked_s,
        "compute_s": worked_s * (0.95 - layout.communication),
        "communication_s": worked_s * layout.communication,
        "avg_latency_ms": 1000.0,
        "batches": [
            {
                "variant": one["variant"],
                "size": 1,
                "prompt_tokens": one["prompt_tokens"],
                "tokens": one["tokens_generated"],
                "latency_ms": one["latency_ms"],
                "ttft_ms": one["ttft_ms"],
            }
            for one in rows
        ],
        "started_at": 1_000.0,
        "ended_at": 1_000.0 + worked_s,
        "error": None,
    }


def config(layout: Layout, run: Path) -> dict[str, Any]:
    """exp_config.json."""
    folder = run / layout.strategy_id
    return {
        "strategy_id": layout.strategy_id,
        "model_name": "meta-llama/Llama-3-8B",
        "model_path": "models/llama-3-8b",
        "num_nodes": layout.nodes,
        "gpus_per_node": layout.world_size // layout.nodes,
        "pp_size": layout.pp,
        "tp_size": layout.tp,
        "dp_size": layout.dp,
        "batch_size": layout.batch_size,
        "max_new_tokens": 20,
        "precision": "bf16",
        "profiling_enabled": True,
        "prompt_df_path": "prompts.parquet",
        "output_root": folder.name,
        "run_id": run.name,
        "world_size": layout.world_size,
        "output_shard_pattern": "shard_{rank}.jsonl",
        "metrics_file": "metrics_rank_{rank}.json",
        "engine": "torch",
        "variants": ["2k", "4k"],
        "micro_batches": 1,
        "temperature": 0,
        "seed": 1,
        "limit": None,
    }


def write_strategy(run: Path, layout: Layout, asked: Sequence[dict[str, Any]]) -> None:
    """One strategy's folder, whole: the last stage's first rank has every row."""
    folder = run / layout.strategy_id
    for part in ("outputs", "metrics", "logs", "profiling"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "exp_config.json").write_text(json.dumps(config(layout, run)))
    (folder / "job.slurm").write_text(
        f"#!/bin/bash\n#SBATCH --nodes={layout.nodes}\nsrun python -m runtime\n"
    )
    answering = (layout.pp - 1) * layout.tp
    rows = [row(layout, prompt, answering, at) for at, prompt in enumerate(asked)]
    worked_s = sum(one["latency_ms"] for one in rows) / 1000
    for rank in range(layout.world_size):
        mine = rows if rank == answering else []
        shard_path(run, layout, rank).write_text(
            "".join(json.dumps(one) + "\n" for one in mine)
        )
        metrics_path(run, layout, rank).write_text(
            json.dumps(metrics(layout, rank, mine, worked_s))
        )
        (folder / "profiling" / f"trace_rank_{rank}.json").write_text("{}")


def shard_path(run: Path, layout: Layout, rank: int) -> Path:
    return run / layout.strategy_id / "outputs" / f"shard_{rank}.jsonl"


def metrics_path(run: Path, layout: Layout, rank: int) -> Path:
    return run / layout.strategy_id / "metrics" / f"metrics_rank_{rank}.json"


def entry(
    layout: Layout, status: str = "COMPLETED", reason: str | None = None, **more: Any
) -> dict[str, Any]:
    """A strategy's entry in the manifest."""
    return {
        "strategy_id": layout.strategy_id,
        "kind": layout.kind,
        "job_id": 100 + layout.world_size,
        "gpuyard_job": "job_1",
        "exp_config_path": f"{layout.strategy_id}/exp_config.json",
        "output_root": layout.strategy_id,
        "status": status,
        "reason": reason,
        "state": status,
        "elapsed_s": 90.0,
        "max_rss_bytes": 3 * 2**30,
        "slurm_out": "slurm.out",
        "attempt": 1,
        **more,
    }


def write_manifest(run: Path, entries: Sequence[dict[str, Any]]) -> None:
    document = {
        "study": "layouts",
        "run_id": run.name,
        "created_at": 1_000.0,
        "study_sha256": "ab" * 32,
        "entries": list(entries),
    }
    (run / "manifest.json").write_text(json.dumps(document))


def write_prompts(run: Path, asked: Sequence[dict[str, Any]]) -> None:
    run.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(asked)), run / "prompts.parquet")


def write_sound_run(study: Path) -> Path:
    """The folder of a run of one sound strategy on two ranks over six prompts."""
    run = study / "runs" / RUN
    asked = prompts(3)
    write_prompts(run, asked)
    write_strategy(run, TENSOR, asked)
    write_manifest(run, [entry(TENSOR)])
    return run


def write_run(study: Path) -> Path:
    """The whole run, as the module's docstring tells; its folder."""
    run = study / "runs" / RUN
    asked = prompts()
    write_prompts(run, asked)
    for layout in (ALONE, TENSOR, PIPELINE, HYBRID):
        write_strategy(run, layout, asked)
    cut = shard_path(run, TENSOR, 0)
    cut.write_text(cut.read_text()[:-100])
    metrics_path(run, TENSOR, 0).unlink()
    for rank in range(HYBRID.world_size):
        shard_path(run, HYBRID, rank).unlink()
        metrics_path(run, HYBRID, rank).unlink()
    write_manifest(
        run,
        [
            entry(ALONE),
            entry(TENSOR, "TIMEOUT", "Slurm ended it at its time limit"),
            entry(PIPELINE),
            entry(HYBRID, "FAILED", "rank 1: CUDA out of memory"),
        ],
    )
    return run
