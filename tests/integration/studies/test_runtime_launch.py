"""Which rank a process is, by each launcher's variables; configurations that cannot
be.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.studies.runtime.decoder_shape import read_shape
from gpuyard.studies.runtime.errors import RunError
from gpuyard.studies.runtime.experiment import Experiment, read_experiment
from gpuyard.studies.runtime.launch import (
    LaunchedProcess,
    Mesh,
    configure_parallel_groups,
    first_host,
    read_launch,
)
from gpuyard.studies.runtime.prompts import batches_of, prepare_prompt_shard
from tests.integration.studies.test_runtime_programs.running import (
    RUNTIME,
    write_config,
)


def experiment_of(tmp_path: Path, **options: object) -> Experiment:
    """An experiment in a folder."""
    return read_experiment(write_config(tmp_path / "run", tmp_path, **options))  # pyright: ignore[reportArgumentType]


def test_torchrun_and_deepspeed_stand_before_slurm() -> None:
    slurm = {"SLURM_PROCID": "9", "SLURM_NTASKS": "10", "SLURM_JOB_ID": "1"}
    ours = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "one",
        "MASTER_PORT": "77",
    }
    found = read_launch(slurm | ours)
    assert (found.rank, found.world_size, found.local_rank, found.master) == (
        3,
        4,
        1,
        ("one", "77"),
    )


def test_srun() -> None:
    found = read_launch(
        {
            "SLURM_PROCID": "2",
            "SLURM_NTASKS": "4",
            "SLURM_LOCALID": "1",
            "SLURM_JOB_ID": "41",
            "SLURM_JOB_NODELIST": "gpu[03-04,9]",
            "SLURM_STEP_ID": "2",
        }
    )
    assert (found.rank, found.world_size, found.local_rank) == (2, 4, 1)
    assert found.master == ("gpu03", "20289")
    with pytest.raises(RunError, match="no sound SLURM_NTASKS"):
        read_launch({"SLURM_PROCID": "2", "SLURM_STEP_ID": "0"})


@pytest.mark.parametrize(
    "batch", [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "41"}]
)
def test_alone(batch: dict[str, str]) -> None:
    """By hand, or in a batch script over two nodes."""
    assert (read_launch(batch).rank, read_launch(batch).world_size) == (0, 1)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("n[1-4]", "n1"),
        ("n[007,9]", "n007"),
        ("n[2-3]-ib,x", "n2-ib"),
        ("x-1,n[1-2]", "x-1"),
    ],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_tensor_parallel_peers_are_neighbours(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, layout=(2, 3, 2))
    places = [
        configure_parallel_groups(
            experiment, LaunchedProcess(rank, 12, 0, "host", ("a", "1"))
        )
        for rank in range(12)
    ]
    assert places[0] == Mesh(0, 0, 0, 2, 3, 2)
    assert places[7] == Mesh(1, 0, 1, 2, 3, 2)
    assert [
        place.rank_of(place.dp_rank, place.pp_rank, place.tp_rank) for place in places
    ] == list(range(12))
    assert [rank for rank, place in enumerate(places) if place.is_output] == [4, 10]
    with pytest.raises(
        RunError, match="4 processes were started, but tp2·pp3·dp2 needs 12"
    ):
        configure_parallel_groups(
            experiment, LaunchedProcess(0, 4, 0, "host", ("a", "1"))
        )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"precision": "fp8"}, "precision is 'fp8', not one of fp32, bf16, fp16"),
        ({"engine": "jax"}, "engine is 'jax'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": True}, "batch_size is True"),
        ({"temperature": -1}, "temperature is -1"),
        ({"world_size": 3}, "world_size is 3, but tp1·pp1·dp1 has 1 processes"),
        ({"model_path": None}, "model_path is missing"),
        ({"strategy_id": ""}, "strategy_id is ''"),
    ],
)
def test_a_wrong_key_is_named(
    options: dict[str, object], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="exp_config") as caught:
        experiment_of(tmp_path, **options)
    assert fault in str(caught.value)


def test_three_peers_cannot_share_four_kv_heads(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 96,
        "hidden_size": 96,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_shape(tmp_path)
    shape.check_layout(4, 2)
    with pytest.raises(
        RunError, match=r"tp_size 3 does not divide the model's KV heads \(4\)"
    ):
        shape.check_layout(3, 1)
    with pytest.raises(
        RunError, match=r"pp_size 3 is more than the model's layers \(2\)"
    ):
        shape.check_layout(1, 3)


def test_replicas_take_turns_and_batches_keep_to_one_variant(tmp_path: Path) -> None:
    rows = [
        {"prompt_id": f"p{number}", "variant": variant, "prompt": "x"}
        for variant in ("2k", "4k")
        for number in range(5)
    ]
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    experiment = experiment_of(
        tmp_path, layout=(1, 1, 2), variants=["4k", "2k"], limit=4
    )
    shards = [
        prepare_prompt_shard(experiment, Mesh(dp, 0, 0, 2, 1, 1), lambda text: [1])
        for dp in range(2)
    ]
    assert [(one.variant, one.prompt_id) for one in shards[1]] == [
        ("4k", "p1"),
        ("4k", "p3"),
        ("2k", "p1"),
        ("2k", "p3"),
    ]
    assert len(shards[0]) == 4
    assert [[one.prompt_id for one in batch] for batch in batches_of(shards[0], 3)] == [
        ["p0", "p2"],
        ["p0", "p2"],
    ]


def test_without_torch_the_fault_of_a_configuration_is_told_still(
    tmp_path: Path,
) -> None:
    config = write_config(tmp_path / "run", tmp_path, engine="jax")
    done = subprocess.run(
        [sys.executable, RUNTIME / "run_distributed_inference.py", "--config", config],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "engine is 'jax'" in done.stderr and "Traceback" not in done.stderr
