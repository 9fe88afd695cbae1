"""Experiments of the runtime: their files, their processes, and what they left."""

import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.ports import free_port

ROOT = Path(__file__).parents[4]
RUNTIME = ROOT / "src/gpuyard/studies/runtime"
PROGRAMS = Path(__file__).parent


def layouts(most: int) -> list[tuple[int, int, int]]:
    """All (tp, pp, dp) of at most so many processes, the small ones first."""
    sizes = range(1, most + 1)
    products = (
        sizes
        for sizes in itertools.product(sizes, repeat=3)
        if sizes[0] * sizes[1] * sizes[2] <= most
    )
    return sorted(products, key=lambda sizes: (sizes[0] * sizes[1] * sizes[2], sizes))


def write_config(
    folder: Path,
    model: Path,
    *,
    layout: tuple[int, int, int] = (1, 1, 1),
    **options: Any,
) -> Path:
    """`exp_config.json` in `folder`, for a model with its prompts beside it."""
    tp_size, pp_size, dp_size = layout
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "strategy_id": folder.name,
        "model_name": model.name,
        "model_path": str(model),
        "num_nodes": 1,
        "gpus_per_node": 1,
        "tp_size": tp_size,
        "pp_size": pp_size,
        "dp_size": dp_size,
        "batch_size": 7,
        "max_new_tokens": 5,
        "precision": "fp32",
        "profiling_enabled": False,
        "output_root": str(folder),
        "prompt_df_path": str(model / "prompts.parquet"),
        "logs_dir": str(folder / "logs"),
        "device": "cpu",
        "profiling_dir": str(folder / "profiling"),
        "run_id": "run_1",
        "world_size": tp_size * pp_size * dp_size,
        "output_shard_pattern": "shard_{rank}.jsonl",
        "metrics_file": "metrics_rank_{rank}.json",
        "engine": "torch",
        "variants": ["2k"],
        "micro_batches": 1,
        "temperature": 0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 0,
        "ignore_eos": False,
        "profiler": "torch",
        "limit": None,
        "timeout_s": 60,
        **options,
    }
    path = folder / "exp_config.json"
    path.write_text(json.dumps(config))
    return path


def environment(rank: int, world: int, port: int, **more: str) -> dict[str, str]:
    """What torchrun would set, and one thread."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HF_HUB_OFFLINE": "1",
        **more,
    }


@contextmanager
def ranks(
    command: Sequence[str | Path], world: int, **more: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """The command as so many ranks; whoever still runs at the end is killed.

    What they print is in `.stdout`.
    """
    port = free_port()
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in range(world):
            out = tempfile.TemporaryFile("w+")  # noqa: SIM115  # read by outputs_of
            one = subprocess.Popen(
                list(map(str, command)),
                env=environment(rank, world, port, **more),
                stdout=out,
                stderr=out,
                text=True,
            )
            one.stdout = out  # pyright: ignore[reportAttributeAccessIssue]
            started.append(one)
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()
            if one.stdout:
                one.stdout.close()


def run(
    command: Sequence[str | Path], world: int, timeout_s: float = 100, **more: str
) -> tuple[list[int], str]:
    """Exit codes of the ranks, and all they printed."""
    with ranks(command, world, **more) as started:
        try:
            codes = [one.wait(timeout_s) for one in started]
        except subprocess.TimeoutExpired as error:
            raise AssertionError(
                f"a rank still runs after {timeout_s} s:\n{printed(started)}"
            ) from error
        return codes, printed(started)


def printed(started: Sequence[subprocess.Popen[str]]) -> str:
    """What ranks printed."""
    texts: list[str] = []
    for one in started:
        assert one.stdout
        one.stdout.seek(0)
        texts.append(one.stdout.read())
    return "\n".join(texts)


def run_one(
    python: Path, config: Path, world: int, runtime: Path = RUNTIME, **more: str
) -> tuple[list[int], str]:
    """One experiment by the real entry."""
    return run(
        [python, runtime / "run_distributed_inference.py", "--config", config],
        world,
        **more,
    )


def run_many(
    python: Path,
    configs: Sequence[Path],
    world: int,
    timeout_s: float = 100,
    code: int = 0,
    program: str = "rank_of_many.py",
    **more: str,
) -> None:
    """Many experiments in one group of processes; all must succeed, or with `code` 1
    one of them fail. `program` runs them.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(map(str, configs)))
        file.flush()
        codes, text = run(
            [python, PROGRAMS / program, RUNTIME, file.name],
            world,
            timeout_s,
            **more,
        )
    assert codes == [code] * world, text


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of all shards by prompt; no prompt may come twice."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("outputs/shard_*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            assert row["prompt_id"] not in found
            found[row["prompt_id"]] = row
    return found


def ids_of(folder: Path) -> dict[str, list[int]]:
    """The tokens of each prompt."""
    return {
        prompt_id: row["token_ids"]
        for prompt_id, row in sorted(rows_of(folder).items())
    }


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of all ranks."""
    paths = sorted(folder.glob("metrics/metrics_rank_*.json"))
    return sorted(
        (json.loads(path.read_text()) for path in paths), key=lambda one: one["rank"]
    )


def expected(model: Path) -> dict[str, list[int]]:
    """What transformers answers."""
    return json.loads((model / "expected.json").read_text())
