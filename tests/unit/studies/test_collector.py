"""What is collected of a run: sound strategies, damaged ones, and what is said of
them.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies import shards
from gpuyard.studies.collector import Collected, ResultCollector
from tests.support.examples import examples
from tests.support.study_run import (
    ALONE,
    HYBRID,
    PIPELINE,
    RUN,
    TENSOR,
    entry,
    metrics_path,
    prompts,
    row,
    shard_path,
    write_manifest,
    write_prompts,
    write_run,
    write_sound_run,
)

OTHER_PROMPT = (
    "state another number of tokens of their prompts than the study's tokenizer makes"
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_sound_run(tmp_path)


def collect(run: Path) -> Collected:
    (collected,) = ResultCollector(run).ingest_run()
    return collected


def shard(run: Path, rank: int = 0) -> Path:
    return shard_path(run, TENSOR, rank)


def change_footer(run: Path, values: dict[str, Any], rank: int = 0) -> None:
    path = metrics_path(run, TENSOR, rank)
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_sound_strategy(run: Path) -> None:
    collector = ResultCollector(run)
    assert collector.ingest_run() == (
        Collected(TENSOR.strategy_id, TENSOR.kind, "COMPLETED", (), 6, 6, 2),
    )
    frame = collector.to_dataframe()
    assert list(frame.columns) == [
        "prompt_id",
        "variant",
        "prompt",
        "token_budget",
        "source_file",
        "local_completion",
        "local_latency_ms",
        "local_status",
        "strategy",
        "strategy_id",
        "rank",
        "gpu_id",
        "cluster_completion",
        "cluster_latency_ms",
        "ttft_ms",
        "tokens_generated",
        "prompt_tokens",
        "finish_reason",
        "token_ids",
        "logprobs",
        "runner_up_ids",
        "runner_up_logprobs",
        "batch",
        "trace_path",
        "status",
    ]
    first = frame.iloc[0]
    said = row(TENSOR, prompts(3)[0])
    assert (first.cluster_completion, list(first.token_ids)) == (
        said["completion"],
        said["token_ids"],
    )
    assert (first.cluster_latency_ms, first.gpu_id, first["rank"]) == (
        said["latency_ms"],
        "0",
        0,
    )
    assert first.trace_path == f"{TENSOR.strategy_id}/profiling/trace_rank_0.json"
    assert set(frame.status) == {"ok"} == set(frame.local_status)


def test_the_run_as_a_whole(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    collector = ResultCollector(run)
    alone, tensor, pipeline, hybrid = collector.ingest_run()
    assert (alone.status, pipeline.status) == ("COMPLETED", "COMPLETED")
    assert (tensor.status, tensor.rows, tensor.expected) == ("PARTIAL", 39, 40)
    assert tensor.reasons == (
        "the job says TIMEOUT; 39 results are there",
        "Slurm ended it at its time limit",
        (
            "1 of 2 footers are missing, so their shards may not be whole:"
            " metrics_rank_0.json"
        ),
        "the last line of shard_0.jsonl (line 40) is cut off and left out",
        "1 of 40 prompts have no result: p20/4k",
    )
    assert (hybrid.status, hybrid.rows) == ("FAILED", 0)
    assert hybrid.reasons[0] == "rank 1: CUDA out of memory"
    long = collector.to_dataframe()
    assert len(long) == 160
    assert not long.duplicated(["prompt_id", "variant", "strategy_id"]).any()
    assert (long.status == "missing").sum() == 41
    wide = collector.to_dataframe(wide=True)
    assert len(wide) == 40
    assert list(wide[f"{HYBRID.strategy_id}.status"].unique()) == ["missing"]
    measured = pq.read_table(collector.metrics).to_pandas()
    assert len(measured) == 1 + 2 + 4 + 4
    assert set(measured.elapsed_s) == {90.0}
    # Rank 0 of TENSOR left no footer; it has a row all the same.
    assert measured[measured.strategy_id == TENSOR.strategy_id].complete.tolist() == [
        False,
        True,
    ]
    document = json.loads(collector.document.read_text())
    assert [one["status"] for one in document["collected"]] == [
        "COMPLETED",
        "PARTIAL",
        "COMPLETED",
        "FAILED",
    ]
    assert document["entries"][0]["job_id"] == 101
    assert sum(1 for _ in collector.iter_traces()) == 11


def test_after_each_strategy_everything_so_far_is_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    collector = ResultCollector(run)
    for count, layout in enumerate((ALONE, TENSOR, PIPELINE), 1):
        collector.ingest_strategy(layout.strategy_id)
        assert pq.read_table(collector.table).num_rows == 40 * count
        assert len(json.loads(collector.document.read_text())["collected"]) == count
    # Once more, as after `study resume`: in place of the first time.
    collector.ingest_strategy(TENSOR.strategy_id)
    assert pq.read_table(collector.table).num_rows == 120
    assert pq.read_table(collector.metrics).num_rows == 7
    assert sorted(path.name for path in collector.results.iterdir()) == [
        f"cluster_metrics_{RUN}.parquet",
        f"{RUN}.json",
        f"{RUN}.parquet",
    ]


def test_collecting_twice_gives_the_same(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    first = ResultCollector(run)
    second = ResultCollector(run, tmp_path / "other")
    first.ingest_run()
    first.ingest_run()
    second.ingest_run()
    assert first.merge().equals(second.merge())
    assert first.document.read_text() == second.document.read_text()


def test_completed_without_output_has_failed(run: Path) -> None:
    for rank in (0, 1):
        shard(run, rank).write_text("")
        change_footer(run, {"rows": 0}, rank)
    collected = collect(run)
    assert collected.status == "FAILED"
    assert collected.reasons[0] == "the job says COMPLETED, but there is no output"


def test_what_did_not_run_says_no_more_than_that(run: Path) -> None:
    write_manifest(
        run,
        [
            entry(TENSOR),
            entry(HYBRID, "SKIPPED", "world size 4 is more than the partition has"),
        ],
    )
    _, skipped = ResultCollector(run).ingest_run()
    assert (skipped.status, skipped.reasons) == (
        "SKIPPED",
        ("world size 4 is more than the partition has",),
    )


@pytest.mark.parametrize("said", ["COMPLETED", "PARTIAL"])
def test_what_is_whole_now_is_completed_whatever_was_noted_before(
    run: Path, said: str
) -> None:
    write_manifest(run, [entry(TENSOR, said, "2 of 6 prompts have no result")])
    assert (collect(run).status, collect(run).reasons) == ("COMPLETED", ())


def test_an_attempt_under_way_is_no_failure(run: Path) -> None:
    for rank in (0, 1):
        shard(run, rank).unlink()
    write_manifest(run, [entry(TENSOR, "SUBMITTED")])
    assert collect(run).status == "SUBMITTED"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"tokens_generated": 21},
            "state more tokens than the 20 that were asked for",
        ),
        ({"tokens_generated": 3}, "state another number of tokens than they list"),
        ({"latency_ms": -1.0, "ttft_ms": None}, "took less than no time"),
        ({"ttft_ms": 9e9}, "have their first token after their last one"),
        ({"logprobs": [0.5] * 16}, "have tokens that are more than certain"),
        ({"prompt_tokens": 7}, OTHER_PROMPT),
    ],
)
def test_figures_that_cannot_be(run: Path, values: dict[str, Any], reason: str) -> None:
    first, *others = shard(run).read_text().splitlines(keepends=True)
    changed = json.dumps(json.loads(first) | values) + "\n"
    shard(run).write_text("".join([changed, *others]))
    collected = collect(run)
    assert (collected.status, collected.rows) == ("PARTIAL", 6)
    assert f"1 results {reason}" in collected.reasons
    assert f"1 results {reason}" in collected.impossible


def test_how_long_prompts_are_is_what_the_study_counted(run: Path) -> None:
    rows = [json.loads(line) for line in shard(run).read_text().splitlines()]
    lines = [json.dumps(one | {"prompt_tokens": 7}) + "\n" for one in rows]
    shard(run).write_text("".join(lines))
    collector = ResultCollector(run)
    (collected,) = collector.ingest_run()
    assert collected.reasons == (f"6 results {OTHER_PROMPT}",)
    counted = [prompt["prompt_tokens"] for prompt in prompts(3)]
    assert collector.to_dataframe().prompt_tokens.tolist() == counted


def test_rounded_weights_may_have_a_tokenizer_of_their_own(run: Path) -> None:
    """What it makes of a prompt says nothing of the answers."""
    rows = [json.loads(line) for line in shard(run).read_text().splitlines()]
    lines = [json.dumps(one | {"prompt_tokens": 7}) + "\n" for one in rows]
    shard(run).write_text("".join(lines))
    manifest = run / "manifest.json"
    more = {"asked": {"model_path": "/models/not-rounded"}}
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | more))
    assert collect(run).impossible == ()


def test_figures_of_a_rank_that_cannot_be_are_not_there(run: Path) -> None:
    change_footer(run, {"torch_version": "", "energy_j": 10**400, "load_s": "long"})
    collector = ResultCollector(run)
    collector.ingest_run()
    found = pq.read_table(collector.metrics).to_pylist()[0]
    names = ("torch_version", "energy_j", "load_s")
    assert [found[name] for name in names] == [None] * 3
    assert found["generate_s"] > 0


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rows": 7}, "shard_0.jsonl has 6 rows, its footer says 7"),
        ({"rows": None}, "shard_0.jsonl has 6 rows, its footer says None"),
        (
            {"complete": False},
            "the footer of shard_0.jsonl says that it is not complete",
        ),
        ({"error": "NCCL timed out"}, "rank 0 says: NCCL timed out"),
        ({"rank": 3}, "the footer of shard_0.jsonl is of rank 3"),
    ],
)
def test_a_footer_that_disagrees(
    run: Path, values: dict[str, Any], reason: str
) -> None:
    change_footer(run, values)
    collected = collect(run)
    assert (collected.status, collected.reasons, collected.rows) == (
        "PARTIAL",
        (reason,),
        6,
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("null", "line 7 of shard_0.jsonl is no result and left out: "),
        ("[1]", "line 7 of shard_0.jsonl is no result and left out: "),
        ("{}", "line 7 of shard_0.jsonl is no result and left out: "),
        (
            '{"prompt_id": "p01", "variant": 2}',
            "line 7 of shard_0.jsonl is no result and left out: ",
        ),
        (
            '{"prompt_id": "p99", "variant": "2k"}',
            "1 results are of no prompt of this run, and left out: p99/2k",
        ),
        (
            '{"prompt_id": "p01", "variant": "2k"}',
            "1 results are there twice, and the first counts: p01/2k",
        ),
        (
            '{"prompt_id": "p01", "variant": "2k", "strategy_id": "b"}',
            "1 results are of the strategy b, and left out: two runs in one folder",
        ),
    ],
)
def test_a_line_that_does_not_belong(run: Path, line: str, reason: str) -> None:
    with shard(run).open("a") as file:
        file.write(line + "\n")
    collected = collect(run)
    assert (collected.status, collected.rows) == ("PARTIAL", 6)
    assert any(one.startswith(reason) for one in collected.reasons), collected.reasons


def test_a_line_that_looks_like_a_cut_last_one(run: Path) -> None:
    shard(run).write_text(f"{{\n{shard(run).read_text()}{{")
    first, last = collect(run).reasons
    assert first.startswith("line 1 of shard_0.jsonl is no result")
    assert last == "the last line of shard_0.jsonl (line 8) is cut off and left out"


def test_two_runs_in_one_folder(run: Path) -> None:
    path = run / TENSOR.strategy_id / "exp_config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"run_id": "run_19990101T000000"})
    )
    shard(run, 2).write_text(shard(run).read_text())
    collected = collect(run)
    assert (collected.status, collected.rows) == ("PARTIAL", 6)
    assert collected.reasons == (
        "exp_config.json is of the run run_19990101T000000: two runs in one folder",
        (
            "1 shards too many for 2 ranks are left out: shard_2.jsonl; two runs in one"
            " folder?"
        ),
    )


def test_no_configuration(run: Path) -> None:
    (run / TENSOR.strategy_id / "exp_config.json").unlink()
    collected = collect(run)
    assert (collected.status, collected.rows, collected.world_size) == ("PARTIAL", 6, 2)
    assert collected.reasons == ("exp_config.json is missing",)


@pytest.mark.parametrize("started", [1, 2])
def test_vllm_answers_for_all_its_workers(run: Path, started: int) -> None:
    path = run / TENSOR.strategy_id / "exp_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"engine": "vllm"}))
    if started == 1:
        shard(run, 1).unlink()
        metrics_path(run, TENSOR, 1).unlink()
    assert collect(run) == Collected(
        TENSOR.strategy_id, TENSOR.kind, "COMPLETED", (), 6, 6, started
    )
    shard(run).unlink()
    assert collect(run).status == "FAILED"


def test_a_shard_that_cannot_be_read_costs_only_itself(run: Path) -> None:
    shard(run, 1).unlink()
    # A file whose first bytes nobody can read, root neither.
    shard(run, 1).symlink_to("/proc/self/mem")
    collected = collect(run)
    assert (collected.status, collected.rows) == ("PARTIAL", 6)
    assert collected.reasons[0].startswith("shard_1.jsonl cannot be read: ")


def test_a_line_without_end_is_not_read_to_its_end(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "BLOCK", 100)
    monkeypatch.setattr(shards, "LONGEST_LINE", 5000)
    with shard(run).open("a") as file:
        file.write("{" * 6000)
    collected = collect(run)
    assert (collected.status, collected.rows) == ("PARTIAL", 6)
    told = "shard_0.jsonl cannot be read: a line has more than 5,000 bytes"
    assert collected.reasons == (told,)


def test_no_link_is_followed_out_of_a_strategys_folder(run: Path) -> None:
    outputs = shard(run).parent
    outputs.rename(run / "elsewhere")
    outputs.symlink_to(run / "elsewhere")
    collected = collect(run)
    assert (collected.status, collected.rows) == ("FAILED", 0)
    assert any("lies below a link" in one for one in collected.reasons)


def test_a_job_cannot_change_what_it_was_asked_for(run: Path) -> None:
    path = run / "manifest.json"
    more = {"variants": ["2k", "4k"], "limit": None}
    more |= {"asked": {"max_new_tokens": 20, "load": None}}
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    config = run / TENSOR.strategy_id / "exp_config.json"
    less = {"max_new_tokens": 9, "variants": ["4k"], "limit": 1, "load": [1]}
    config.write_text(json.dumps(json.loads(config.read_text()) | less))
    assert (collect(run).status, collect(run).expected) == ("COMPLETED", 6)


def test_a_limit_and_a_variant_ask_for_less(run: Path) -> None:
    path = run / TENSOR.strategy_id / "exp_config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"variants": ["4k"], "limit": 2})
    )
    lines = [row(TENSOR, prompt) for prompt in prompts(2, ["4k"])]
    shard(run).write_text("".join(json.dumps(line) + "\n" for line in lines))
    change_footer(run, {"rows": 2})
    assert collect(run) == Collected(
        TENSOR.strategy_id, TENSOR.kind, "COMPLETED", (), 2, 2, 2
    )


def test_a_last_line_without_its_end_counts_if_it_is_whole(run: Path) -> None:
    shard(run).write_text(shard(run).read_text().rstrip("\n"))
    assert collect(run).status == "COMPLETED"


@pytest.mark.parametrize("content", [None, b"not parquet"])
def test_without_prompts_nothing_can_be_said(run: Path, content: bytes | None) -> None:
    (run / "prompts.parquet").unlink()
    if content is not None:
        (run / "prompts.parquet").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"prompts\.parquet: cannot be read"):
        ResultCollector(run)


def test_a_prompt_twice_is_refused(run: Path) -> None:
    write_prompts(run, [*prompts(1), *prompts(1)])
    with pytest.raises(InvalidInputError, match="has a prompt twice"):
        ResultCollector(run)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damage_anywhere_costs_only_what_it_hits(
    run: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """Lines are cut, overwritten with anything, dropped and doubled; each prompt whose
    line is whole is there.
    """
    monkeypatch.setattr(
        shards, "BLOCK", data.draw(st.sampled_from([1, 300, 700, 1 << 20]))
    )
    lines = [json.dumps(row(TENSOR, prompt)).encode() for prompt in prompts(3)]
    whole: list[int] = []
    damaged: list[bytes] = []
    for number, line in enumerate(lines):
        match data.draw(st.sampled_from(["whole", "cut", "noise", "gone", "twice"])):
            case "whole":
                whole.append(number)
                damaged.append(line)
            case "cut":
                damaged.append(line[: data.draw(st.integers(0, len(line) - 1))])
            case "noise":
                damaged.append(
                    data.draw(st.binary(max_size=40)).replace(b"\n", b"") or b"null"
                )
            case "twice":
                whole.append(number)
                damaged += [line, line]
            case _:
                pass
    shard(run).write_bytes(
        b"\n".join(damaged) + data.draw(st.sampled_from([b"\n", b""]))
    )
    collector = ResultCollector(run)
    (collected,) = collector.ingest_run()
    frame = collector.to_dataframe()
    there = frame[frame.status == "ok"]
    expected = {
        (prompts(3)[number]["prompt_id"], prompts(3)[number]["variant"])
        for number in whole
    }
    assert set(zip(there.prompt_id, there.variant, strict=True)) == expected
    assert len(frame) == 6 and collected.rows == len(expected)
    intact = damaged == lines
    assert collected.status == (
        "COMPLETED" if intact else "PARTIAL" if expected else "FAILED"
    )
    assert bool(collected.reasons) == (not intact)
