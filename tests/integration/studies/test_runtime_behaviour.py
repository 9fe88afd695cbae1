"""What the runtime does besides answering greedily: draws, faults, death, the other
engines.
"""

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.studies.test_runtime_programs import running
from tests.integration.studies.test_runtime_programs.running import (
    ids_of,
    metrics_of,
    run_many,
    run_one,
    write_config,
)
from tests.support import huggingface
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow
fast_trainer_python = huggingface.fast_trainer_python


@pytest.fixture(scope="module")
def model(fast_trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama in several files, with prompts and transformers' answers."""
    folder = tmp_path_factory.mktemp("models")
    codes, text = running.run(
        [fast_trainer_python, running.PROGRAMS / "reference.py", folder, 1, 0, "llama"],
        1,
    )
    assert codes == [0], text
    return folder / "llama"


def test_the_same_seed_draws_the_same_tokens_in_every_layout(
    model: Path, fast_trainer_python: Path, tmp_path: Path
) -> None:
    draws = {"temperature": 0.9, "top_k": 20, "top_p": 0.8, "ignore_eos": True}
    ways = {
        "plain": {"temperature": 1.3},
        "cut": draws,
        "other": {**draws, "seed": 1},
        "one": {**draws, "top_k": 1},
        "nucleus": {**draws, "top_k": 0},
    }
    # The other ways differ from these in numbers alone: one layout of two ranks does.
    in_every_way = ("plain", "cut")
    layouts = {1: [(1, 1, 1)], 2: [(2, 1, 1), (1, 2, 1), (1, 1, 2)]}
    found: dict[str, list[dict[str, list[int]]]] = {}
    for world, some in layouts.items():
        folders = {
            tmp_path / f"{name}-{'x'.join(map(str, layout))}-{batch}": (
                name,
                layout,
                batch,
            )
            for name, layout, batch in itertools.product(ways, some, (1, 7))
            if name in in_every_way or (batch > 1 and layout in ((1, 1, 1), (2, 1, 1)))
        }
        configs = [
            write_config(
                folder,
                model,
                layout=layout,
                batch_size=batch,
                micro_batches=2,
                **ways[name],
            )
            for folder, (name, layout, batch) in folders.items()
        ]
        run_many(fast_trainer_python, configs, world)
        for folder, (name, _, _) in folders.items():
            found.setdefault(name, []).append(ids_of(folder))
    for name, same in found.items():
        assert len(same) == (8 if name in in_every_way else 2)
        assert all(one == same[0] for one in same), name
    assert found["cut"][0] != found["other"][0]
    greedy = write_config(tmp_path / "greedy", model, ignore_eos=True)
    run_many(fast_trainer_python, [greedy], 1)
    assert found["one"][0] == ids_of(greedy.parent)


def edited(model: Path, **changes: object) -> None:
    """Change the model's config.json."""
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(path: Path) -> None:
    """Lose the second half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


SPOILS: dict[str, tuple[Callable[[Path], object], str]] = {
    "family": (lambda model: edited(model, model_type="gpt2"), "family 'gpt2'"),
    "rope": (
        lambda model: edited(model, rope_parameters={"rope_type": "dynamic"}),
        "rope 'dynamic'",
    ),
    "kv-heads": (
        lambda model: edited(model, num_key_value_heads=3),
        "does not divide the model's KV heads (3)",
    ),
    "vocabulary": (
        lambda model: edited(model, vocab_size=95),
        "does not divide the model's vocabulary (95)",
    ),
    "other-sizes": (
        lambda model: edited(model, hidden_size=190),
        "but config.json says",
    ),
    "no-config": (
        lambda model: (model / "config.json").unlink(),
        "config.json cannot be read",
    ),
    "no-shard": (
        lambda model: (model / "model-00002-of-00015.safetensors").unlink(),
        "lacks model-00002-of-00015",
    ),
    "cut-shard": (
        lambda model: cut(model / "model-00001-of-00015.safetensors"),
        "model-00001-of-00015.safetensors",
    ),
    "no-index": (
        lambda model: (model / "model.safetensors.index.json").unlink(),
        "neither model.safetensors nor",
    ),
    "no-tokenizer": (
        lambda model: (model / "tokenizer.json").write_text("{"),
        "the tokenizer of",
    ),
    "no-prompts": (lambda model: (model / "prompts.jsonl").unlink(), "prompts.parquet"),
    "empty-prompt": (
        lambda model: (model / "prompts.jsonl").write_text(
            '{"prompt_id": "p07", "variant": "2k", "prompt": ""}\n'
        ),
        "prompt p07 (2k) has no tokens",
    ),
}


def test_every_rank_says_what_is_wrong(
    model: Path, fast_trainer_python: Path, tmp_path: Path
) -> None:
    faults: dict[Path, str] = {}
    for name, (spoil, fault) in SPOILS.items():
        shutil.copytree(model, tmp_path / "models" / name)
        spoil(tmp_path / "models" / name)
        faults[
            write_config(tmp_path / name, tmp_path / "models" / name, layout=(2, 1, 1))
        ] = fault
    faults[write_config(tmp_path / "alone", model)] = (
        "2 processes were started, but tp1·pp1·dp1 needs 1"
    )
    faults[
        write_config(tmp_path / "deep", model, layout=(1, 2, 1), engine="deepspeed")
    ] = "tensor-parallel only"
    faults[
        write_config(tmp_path / "variant", model, layout=(2, 1, 1), variants=["8k"])
    ] = "no prompt of the variant"
    run_many(fast_trainer_python, list(faults), 2, code=1)
    for config, fault in faults.items():
        metrics = metrics_of(config.parent)
        assert [one["complete"] for one in metrics] == [False, False]
        assert all(fault in one["error"] for one in metrics), (
            config.parent.name,
            metrics,
        )
        assert ids_of(config.parent) == {}


@pytest.mark.parametrize("layout", [(2, 1, 1), (1, 2, 1)])
def test_the_death_of_a_rank_ends_the_others(
    layout: tuple[int, int, int], model: Path, fast_trainer_python: Path, tmp_path: Path
) -> None:
    config = write_config(
        tmp_path / "run",
        model,
        layout=layout,
        batch_size=1,
        max_new_tokens=100,
        ignore_eos=True,
        timeout_s=20,
    )
    command = [
        fast_trainer_python,
        running.RUNTIME / "run_distributed_inference.py",
        "--config",
        config,
    ]
    output = layout[1] - 1
    shard = config.parent / f"outputs/shard_{output}.jsonl"
    with running.ranks(command, 2) as started:
        wait_until(
            lambda: shard.exists() and shard.stat().st_size > 0, what="the first row"
        )
        started[1 - output].kill()
        try:
            code = started[output].wait(60)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it still runs: {running.printed(started)}")
        assert code == 1, running.printed(started)
    (metrics,) = metrics_of(config.parent)
    assert metrics["rank"] == output and not metrics["complete"] and metrics["error"]
    assert metrics["rows"] == len(ids_of(config.parent)) > 0


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "srun"])
def test_every_launcher_can_start_a_copy_of_it(
    launcher: str, model: Path, fast_trainer_python: Path, tmp_path: Path
) -> None:
    shutil.copytree(running.RUNTIME, tmp_path / "copy")
    config = write_config(tmp_path / "run", model, layout=(2, 1, 1))
    program = [tmp_path / "copy/run_distributed_inference.py", "--config", config]
    port = str(running.free_port())
    quiet = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    commands = {
        "torchrun": [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--master-port",
            port,
        ],
        "deepspeed": [
            "-m",
            "deepspeed.launcher.runner",
            "--num_accelerators",
            "2",
            "--master_port",
            port,
        ],
        "srun": [],
    }
    slurm = {
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": port,
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NODELIST": "localhost",
    }
    each = [
        {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), **slurm}
        for rank in range(2)
    ]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [fast_trainer_python, *commands[launcher], *program],
                    cwd="/",
                    env={**os.environ, **quiet, **more},
                )
            )
            for more in (each if launcher == "srun" else [{}])
        ]
        assert [one.wait(100) for one in started] == [0] * len(started)
    assert ids_of(config.parent) == running.expected(model)


def test_two_replicas_of_two_stages_under_load(
    model: Path, fast_trainer_python: Path, tmp_path: Path
) -> None:
    """Each replica forms the same batches on all of its ranks, and answers its share."""
    load = {"rates": [50.0, 5000.0], "requests": 7, "seed": 1}
    config = write_config(
        tmp_path / "run", model, layout=(1, 2, 2), batch_size=3, load=load
    )
    codes, text = run_one(fast_trainer_python, config, 4)
    assert codes == [0] * 4, text
    files = sorted(config.parent.glob("load/*.jsonl"))
    assert [path.name for path in files] == [
        "load_rank_1.jsonl",
        "load_rank_3.jsonl",
    ]
    rows = [json.loads(line) for path in files for line in path.open()]
    for rate in load["rates"]:
        asked = [row for row in rows if row["rate"] == rate]
        assert len(asked) == len({row["arrived_s"] for row in asked}) == 7
    assert all(0 < row["ttft_ms"] <= row["latency_ms"] for row in rows)


def test_a_missing_vllm_is_told(
    model: Path, fast_trainer_python: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "run", model, layout=(2, 1, 1), engine="vllm")
    codes, text = run_one(fast_trainer_python, config, 1)
    assert codes == [1]
    assert (
        "the engine vllm is not installed here"
        in metrics_of(config.parent)[0]["error"]
        in text
    )


@pytest.mark.parametrize("times", ["v1", "v0", "none"])
def test_vllm_is_told_the_layout_and_its_answers_become_rows(
    times: str, model: Path, fast_trainer_python: Path, tmp_path: Path
) -> None:
    temperature = 0.0 if times == "v0" else 0.5
    config = write_config(
        tmp_path / "run",
        model,
        layout=(2, 2, 1),
        engine="vllm",
        num_nodes=2,
        temperature=temperature,
        seed=7,
        limit=3,
        precision="bf16",
    )
    told = tmp_path / "told.json"
    world = 4 if times == "v1" else 1
    codes, text = run_one(
        fast_trainer_python,
        config,
        world,
        PYTHONPATH=str(running.PROGRAMS / "fake_vllm"),
        FAKE_VLLM=str(told),
        FAKE_VLLM_METRICS=times,
    )
    assert codes == [0] * world, text
    asked = json.loads(told.read_text())
    sampling = asked.pop("sampling")[1:]
    assert asked == {
        "model": str(model),
        "dtype": "bfloat16",
        "seed": 7,
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "max_num_seqs": 7,
        "disable_log_stats": False,
        "distributed_executor_backend": "ray",
        "launcher": [],
        "enable_prefix_caching": False,
    }
    assert len({one.pop("seed") for one in sampling}) == len(sampling) == 3
    assert sampling[0] == {
        "temperature": temperature,
        "logprobs": None if temperature else 2,
        "top_p": 1.0,
        "top_k": -1,
        "max_tokens": 5,
        "ignore_eos": False,
        "stop_token_ids": [2, 3],
        "detokenize": False,
    }
    rows = running.rows_of(config.parent)
    prompts = [
        json.loads(line) for line in (model / "prompts.jsonl").read_text().splitlines()
    ]
    for prompt in prompts[:3]:
        row = rows[prompt["prompt_id"]]
        asked_ids = [int(word[1:]) for word in prompt["prompt"].split()]
        assert (
            row["token_ids"]
            == [token + 1 for token in asked_ids][: row["tokens_generated"]]
        )
        assert row["finish_reason"] == (
            "stop" if row["token_ids"][-1] in (2, 3) else "length"
        )
        assert row.get("logprobs") == (
            None if temperature else [-0.25] * row["tokens_generated"]
        )
        if times == "none":
            assert (
                row["ttft_ms"] is None
                and row["token_ms"] == []
                and row["latency_ms"] > 0
            )
        else:
            assert row["ttft_ms"] == pytest.approx(250)
            assert row["latency_ms"] == pytest.approx(
                750 if row["tokens_generated"] > 1 else 250
            )
            assert sum(row["token_ms"]) == pytest.approx(row["latency_ms"])
    metrics = metrics_of(config.parent)
    assert [one["rows"] for one in metrics] == [3, 0, 0, 0]
    assert [path.name for path in sorted(config.parent.glob("outputs/*"))] == [
        f"shard_{rank}.jsonl" for rank in range(4)
    ]
    assert all(one["complete"] for one in metrics)
    assert (metrics[0]["engine"], metrics[0]["engine_version"]) == ("vllm", "0.0.fake")


def test_deepspeed_on_two_processes_answers_as_transformers_does(
    model: Path, fast_trainer_python: Path, tmp_path: Path
) -> None:
    draws = {"temperature": 0.9, "top_p": 0.8, "seed": 3}
    ours = write_config(tmp_path / "ours", model, layout=(2, 1, 1), **draws)
    greedy = write_config(
        tmp_path / "greedy", model, layout=(2, 1, 1), engine="deepspeed", batch_size=4
    )
    drawn = write_config(
        tmp_path / "drawn", model, layout=(2, 1, 1), engine="deepspeed", **draws
    )
    picky = shutil.copytree(model, tmp_path / "picky")
    (picky / "generation_config.json").write_text(
        '{"eos_token_id": [2, 3], "repetition_penalty": 5.0, "top_k": 1}'
    )
    plain, other = (
        write_config(
            tmp_path / engine,
            picky,
            layout=(2, 1, 1),
            engine=engine,
            ignore_eos=True,
            max_new_tokens=20,
        )
        for engine in ("torch", "deepspeed")
    )
    half = write_config(
        tmp_path / "half",
        model,
        layout=(2, 1, 1),
        engine="deepspeed",
        precision="bf16",
        limit=1,
    )
    run_many(
        fast_trainer_python,
        [ours, greedy, drawn, plain, other, half],
        2,
        program="deepspeed_ranks.py",
        DS_ACCELERATOR="cpu",
    )
    # DeepSpeed rounds them with the weights, and rounded frequencies turn each key by
    # another angle than transformers does.
    for path in half.parent.glob("metrics/buffers_*.json"):
        types = json.loads(path.read_text())
        assert types["model.rotary_emb.inv_freq"] == "torch.float32"
    assert len(list(half.parent.glob("metrics/buffers_*.json"))) == 2
    assert ids_of(other.parent) == ids_of(plain.parent)
    assert ids_of(greedy.parent) == running.expected(model)
    assert ids_of(drawn.parent) == ids_of(ours.parent)
    metrics = metrics_of(greedy.parent)
    assert (
        metrics[0]["rows"] == len(running.expected(model)) and metrics[1]["rows"] == 0
    )
    assert metrics[0]["engine"] == "deepspeed" and metrics[0][
        "engine_version"
    ].startswith("0.19.")
