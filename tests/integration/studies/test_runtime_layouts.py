"""Every layout of up to four processes answers as transformers does, token by token,
and reads only its part.

A soak draws more models: `GPUYARD_STUDY_MODELS=30 GPUYARD_STUDY_SEED=5 make test
ARGS="-k every_layout"`.
"""

import json
import math
import os
from pathlib import Path

import pytest

from tests.integration.studies.test_runtime_programs.running import (
    PROGRAMS,
    expected,
    ids_of,
    layouts,
    metrics_of,
    rows_of,
    run,
    run_many,
    run_one,
    write_config,
)
from tests.support import huggingface

fast_trainer_python = huggingface.fast_trainer_python
Layout = tuple[int, int, int]
DRAWN = int(os.environ.get("GPUYARD_STUDY_MODELS") or 0)
SEED = int(os.environ.get("GPUYARD_STUDY_SEED") or 1)


@pytest.fixture(scope="module")
def models(
    fast_trainer_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """Small random models of all families, each with prompts and transformers'
    answers.
    """
    folder = tmp_path_factory.mktemp("models")
    codes, text = run(
        [fast_trainer_python, PROGRAMS / "reference.py", folder, SEED, max(DRAWN, 1)], 1
    )
    assert codes == [0], text
    return sorted(folder.iterdir())


def cases(folder: Path, models: list[Path], layout: Layout) -> list[tuple[Path, Path]]:
    """Folders of experiments, each with its model: alone and in batches, in
    micro-batches where there is a pipeline. With several processes outside a soak in
    batches only (test_runtime_behaviour.py has them alone, too).
    """
    found: list[tuple[Path, Path]] = []
    has_few = DRAWN or math.prod(layout) == 1
    for model in models:
        for batch, micro in ((1, 1), (7, 1), (7, 3)):
            is_wanted = has_few or batch > 1
            if is_wanted and (micro == 1 or layout[1] > 1):
                place = (
                    folder
                    / f"{model.name}-{'x'.join(map(str, layout))}-b{batch}-m{micro}"
                )
                write_config(
                    place, model, layout=layout, batch_size=batch, micro_batches=micro
                )
                found.append((place, model))
    return found


@pytest.mark.slow
@pytest.mark.timeout(180 + 90 * DRAWN)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_layout_answers_as_transformers_does(
    world: int, models: list[Path], fast_trainer_python: Path, tmp_path: Path
) -> None:
    # Every model in every layout takes minutes. Outside a soak each layout of several
    # processes has a sixth of the models.
    chosen = [
        layout for layout in layouts(4) if layout[0] * layout[1] * layout[2] == world
    ]
    found: list[tuple[Path, Path]] = []
    for number, layout in enumerate(chosen):
        found += cases(
            tmp_path,
            models if DRAWN or world == 1 else models[(number - world) % 6 :: 6],
            layout,
        )
    run_many(
        fast_trainer_python,
        [place / "exp_config.json" for place, _ in found],
        world,
        160 + 90 * DRAWN,
    )
    for place, model in found:
        assert ids_of(place) == expected(model), place.name
        check_log_probabilities(place, model)
        check_what_ranks_say(place, world)


def check_repeats(folder: Path, model: Path) -> None:
    """All prompts are answered twice, in other batches; in fp32 with the same tokens."""
    (path,) = folder.glob("repeats/*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    batches = [(row["prompt_id"], row["batch"]) for row in rows]
    assert batches == [("p02", 0), ("p03", 0), ("p01", 1)]
    for row in rows:
        assert row["token_ids"] == expected(model)[row["prompt_id"]]
        assert row["repeat"] == 1
    for one in metrics_of(folder):
        assert [each["seconds"] > 0 for each in one["passes"]] == [True, True]


def check_log_probabilities(folder: Path, model: Path) -> None:
    """Each token is as probable as in transformers, within the tolerance of fp32."""
    wanted = json.loads((model / "logprobs.json").read_text())
    for prompt_id, row in rows_of(folder).items():
        count = row["tokens_generated"]
        own, runners_up, seconds = zip(*wanted[prompt_id][:count], strict=True)
        assert row["logprobs"] == pytest.approx(own, abs=0.001)
        assert row["runner_up_ids"] == list(runners_up)
        assert row["runner_up_logprobs"] == pytest.approx(seconds, abs=0.001)


def check_what_ranks_say(folder: Path, world: int) -> None:
    """Shard and footer of each rank agree, rows come from output ranks, and each rank
    read its part only.
    """
    config = json.loads((folder / "exp_config.json").read_text())
    metrics = metrics_of(folder)
    assert [one["rank"] for one in metrics] == list(range(world))
    for one in metrics:
        lines = (folder / f"outputs/shard_{one['rank']}.jsonl").read_text().splitlines()
        is_output = one["pp_rank"] == config["pp_size"] - 1 and one["tp_rank"] == 0
        assert len(lines) == one["rows"] and bool(lines) == is_output
        assert one["complete"] and one["error"] is None
        assert one["bytes_read"] <= 1.05 * one["bytes_share"]
        assert one["compute_s"] + one["communication_s"] == pytest.approx(
            one["generate_s"]
        )
    shares = [one["rows"] for one in metrics if one["rows"]]
    assert len(shares) == config["dp_size"] and max(shares) - min(shares) <= 1


@pytest.mark.slow
def test_ranks_together_read_the_model_once(
    models: list[Path], fast_trainer_python: Path, tmp_path: Path
) -> None:
    model = next(one for one in models if one.name == "llama")
    index = json.loads((model / "model.safetensors.index.json").read_text())
    config = write_config(
        tmp_path / "tp2", model, layout=(2, 1, 1), limit=3, batch_size=2, repeats=2
    )
    codes, text = run_one(fast_trainer_python, config, 2)
    assert codes == [0, 0], text
    check_repeats(config.parent, model)
    read = [one["bytes_read"] for one in metrics_of(config.parent)]
    assert read[0] == read[1]
    # Only the norms are read by both.
    assert (
        index["metadata"]["total_size"]
        < sum(read)
        < 1.01 * index["metadata"]["total_size"]
    )


@pytest.mark.slow
def test_a_row_says_all_of_its_prompt(
    models: list[Path], fast_trainer_python: Path, tmp_path: Path
) -> None:
    model = next(one for one in models if one.name == "llama-biased")
    config = write_config(tmp_path / "one", model, limit=7, profiling_enabled=True)
    codes, text = run_one(fast_trainer_python, config, 1)
    assert codes == [0], text
    rows = rows_of(config.parent)
    assert list(rows) == [f"p{number:02}" for number in range(1, 8)]
    for prompt_id, row in rows.items():
        ids = expected(model)[prompt_id]
        assert (
            row["tokens_generated"]
            == len(row["token_ids"])
            == len(row["token_ms"])
            == len(ids)
        )
        assert row["finish_reason"] == ("stop" if ids[-1] == 2 else "length")
        assert row["completion"] == " ".join(f"w{token}" for token in ids)
        assert row["ttft_ms"] == row["token_ms"][0]
        assert row["latency_ms"] == pytest.approx(sum(row["token_ms"]))
        assert (row["variant"], row["strategy_id"], row["batch"], row["rank"]) == (
            "2k",
            "one",
            0,
            0,
        )
    (metrics,) = metrics_of(config.parent)
    assert metrics["tokens_generated"] == sum(
        row["tokens_generated"] for row in rows.values()
    )
    assert metrics["tokens_per_s"] > 0 < metrics["peak_memory_bytes"]
    (batch,) = metrics["batches"]
    assert (batch["variant"], batch["size"], batch["tokens"]) == (
        "2k",
        7,
        metrics["tokens_generated"],
    )
    trace = json.loads((config.parent / "profiling/trace_rank_0.json").read_text())
    assert any(
        "scaled_dot_product" in event.get("name", "") for event in trace["traceEvents"]
    )
    shard = config.parent / "outputs/shard_0.jsonl"
    assert (
        config.parent / "metrics/metrics_rank_0.json"
    ).stat().st_mtime_ns >= shard.stat().st_mtime_ns
