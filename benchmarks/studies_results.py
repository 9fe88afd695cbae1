"""Collecting a study's results: rows of 64 ranks checked, joined with their prompts and
written as Parquet.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from benchmarks.bench import scaled, scratch, timed
from benchmarks.figures import Figure, alternate
from gpuyard.studies.collector import ResultCollector

GROUP = "studies-results"
RANKS = 64
TOKENS = 16
STRATEGY = "llama8b_pp1_tp1_dp64"


def measure(scale: float) -> Iterator[Figure]:
    """Seconds and memory beside pyarrow's reader over the same bytes; each in a process
    of its own, in turns.
    """
    rows = scaled(1_000_000, scale, RANKS)
    with scratch() as folder:
        run = folder / "runs" / "run_20261123T000000"
        _write(run, rows)
        turns = alternate(
            scaled(3, scale),
            lambda: _in_a_process("collect", run),
            lambda: _in_a_process("read", run),
        )
    ours, floors = (list(zip(*side, strict=True)) for side in turns)
    name = f"{rows:,} rows of {RANKS} shards collected"
    bare = "pyarrow reading the same bytes"
    yield Figure(GROUP, name, ours[0], "s", 2.5, floors[0], bare)
    # Where other programs take turns on the cores, this says how long it would be alone
    # on one of them.
    yield Figure(GROUP, f"{name}, processor time", ours[1], "s", 2.5, floors[1], bare)
    limit_s = 10 * max(rows / 1e6, 0.1)
    yield Figure(
        GROUP,
        f"{name}, against the clock",
        ours[0],
        "s",
        limit_s,
        floors[0],
        bare,
        absolute=True,
    )
    yield Figure(
        GROUP,
        f"{name}, most memory",
        ours[2],
        "MB",
        1000,
        floors[2],
        bare,
        absolute=True,
    )


def _in_a_process(what: str, run: Path) -> tuple[float, float, float]:
    command = [sys.executable, "-m", "benchmarks.studies_results", what, str(run)]
    seconds, worked_s, memory_mb = json.loads(
        subprocess.run(command, check=True, capture_output=True).stdout
    )
    return seconds, worked_s, memory_mb


def _write(run: Path, rows: int) -> None:
    outputs, metrics = (run / STRATEGY / name for name in ("outputs", "metrics"))
    for folder in (outputs, metrics):
        folder.mkdir(parents=True)
    config = {
        "strategy_id": STRATEGY,
        "world_size": RANKS,
        "dp_size": RANKS,
        "variants": ["2k"],
    }
    (run / STRATEGY / "exp_config.json").write_text(json.dumps(config))
    ids = [f"p{number:07}" for number in range(rows)]
    prompts = {
        "prompt_id": ids,
        "variant": ["2k"] * rows,
        "prompt": [f"What comes after {one}?" for one in ids],
    }
    pq.write_table(pa.table(prompts), run / "prompts.parquet")
    for rank in range(RANKS):
        mine = ids[rank::RANKS]
        with (outputs / f"shard_{rank}.jsonl").open("w") as file:
            file.writelines(_row(one, number, rank) for number, one in enumerate(mine))
        footer = {
            "rank": rank,
            "rows": len(mine),
            "complete": True,
            "gpu_id": str(rank),
        }
        (metrics / f"metrics_rank_{rank}.json").write_text(json.dumps(footer))


def _row(prompt_id: str, number: int, rank: int) -> str:
    row = {
        "prompt_id": prompt_id,
        "variant": "2k",
        "strategy_id": STRATEGY,
        "completion": (
            f"After {prompt_id} comes the next one, which has a number of its own; it"
            f" is {number + 1}."
        ),
        "latency_ms": 400 + number % 97 / 8,
        "tokens_generated": TOKENS,
        "ttft_ms": 30.5,
        "token_ms": [25.0 + place / 8 for place in range(TOKENS)],
        "token_ids": [(number * 31 + place * 7) % 128_000 for place in range(TOKENS)],
        "prompt_tokens": 2000,
        "finish_reason": "length",
        "batch": number // 8,
        "rank": rank,
    }
    return json.dumps(row) + "\n"


def _read(run: Path) -> None:
    for path in sorted((run / STRATEGY / "outputs").iterdir()):
        pj.read_json(path)


def _collect(run: Path) -> None:
    (collected,) = ResultCollector(run).ingest_run({})
    assert collected.status == "COMPLETED", collected


if __name__ == "__main__":
    work = {"read": _read, "collect": _collect}[sys.argv[1]]
    before = resource.getrusage(resource.RUSAGE_SELF)
    taken = timed(lambda: work(Path(sys.argv[2])))
    after = resource.getrusage(resource.RUSAGE_SELF)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps([taken, worked, after.ru_maxrss / 1000]))
