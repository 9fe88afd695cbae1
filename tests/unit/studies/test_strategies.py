"""Strategies: the document's four, any other layout, and what is run next."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies import strategies
from gpuyard.studies.strategies import (
    HybridTensorPipeline,
    ParallelismStrategy,
    PipelineParallelAcrossNodes,
    StrategyJobEnd,
    TensorParallelAcrossNodes,
    TensorParallelSingleNode,
    strategies_of,
)
from gpuyard.studies.study import StrategySection
from tests.unit.studies.folders import make_study

FOUR = [
    (TensorParallelAcrossNodes(), (8, 1, 8, 1, 1), "llama8b_pp1_tp8_n8"),
    (PipelineParallelAcrossNodes(), (8, 1, 1, 8, 1), "llama8b_pp8_tp1"),
    (TensorParallelSingleNode(), (1, 8, 8, 1, 1), "llama8b_pp1_tp8"),
    (HybridTensorPipeline(), (2, 4, 4, 2, 1), "llama8b_pp2_tp4"),
]


@pytest.mark.parametrize(
    ("strategy", "sizes", "made"), FOUR, ids=lambda value: getattr(value, "name", None)
)
def test_the_documents_four(
    strategy: ParallelismStrategy, sizes: tuple[int, ...], made: str
) -> None:
    found = (
        strategy.num_nodes,
        strategy.gpus_per_node,
        strategy.tp_size,
        strategy.pp_size,
        strategy.dp_size,
    )
    assert found == sizes
    assert strategy.world_size == sizes[0] * sizes[1] == 8
    assert strategy.strategy_id("llama8b") == made
    assert strategy.name == strategy.kind
    assert strategy.slurm_constraints() == {
        "nodes": sizes[0],
        "gpus_per_node": sizes[1],
        "ntasks_per_node": sizes[1],
    }
    assert strategy.deepspeed_args() == [
        f"--num_nodes={sizes[0]}",
        f"--num_gpus={sizes[1]}",
    ]
    assert strategy.expected_jobs == 1
    with pytest.raises(FrozenInstanceError):
        strategy.tp_size = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_topologies_in_words() -> None:
    assert (
        TensorParallelAcrossNodes().describe_topology()
        == "8 nodes x 1 GPU per node: 8-way tensor across nodes"
    )
    hybrid = HybridTensorPipeline().describe_topology()
    assert (
        hybrid
        == "2 nodes x 4 GPU per node: 4-way tensor within a node, 2 pipeline stages"
    )
    assert (
        ParallelismStrategy().describe_topology()
        == "1 node x 1 GPU per node: one process"
    )


def test_the_form_of_an_id() -> None:
    layout = ParallelismStrategy(
        num_nodes=2,
        gpus_per_node=1,
        pp_size=2,
        sweep={"batch_size": (4, 8), "micro_batches": (2,)},
    )
    assert layout.strategy_id("llama8b") == "llama8b_pp2_tp1"
    assert (
        layout.strategy_id("llama8b", {"batch_size": 8, "micro_batches": 2})
        == "llama8b_pp2_tp1_b8"
    )
    assert (
        ParallelismStrategy(num_nodes=4, dp_size=4).strategy_id("m") == "m_pp1_tp1_dp4"
    )


SIZES = st.integers(1, 4)


@given(SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES)
def test_layouts_that_differ_have_ids_that_differ(
    a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int
) -> None:
    one = ParallelismStrategy(
        num_nodes=a, gpus_per_node=b * c * d, tp_size=b, pp_size=c, dp_size=d
    )
    other = ParallelismStrategy(
        num_nodes=e, gpus_per_node=f * g * h, tp_size=f, pp_size=g, dp_size=h
    )
    same = (a, b, c, d) == (e, f, g, h)
    assert (one.strategy_id("m") == other.strategy_id("m")) == same


ENDS = st.sampled_from(["COMPLETED", "FAILED", "TIMEOUT", "PARTIAL"])


@given(
    st.lists(SIZES, unique=True),
    st.lists(SIZES, unique=True),
    st.integers(0, 3),
    st.lists(ENDS, min_size=64, max_size=64),
)
def test_a_sweep_runs_each_point_until_it_completes_or_is_given_up(
    batches: list[int], micro: list[int], retries: int, ends: list[str]
) -> None:
    swept = {"batch_size": tuple(batches), "micro_batches": tuple(micro)}
    strategy = ParallelismStrategy(
        sweep={key: values for key, values in swept.items() if values}, retries=retries
    )
    done: list[StrategyJobEnd] = []
    while (point := strategy.next_config(done)) is not None:
        attempt = 1 + sum(outcome.overrides == point for outcome in done)
        done.append(StrategyJobEnd(point, ends[len(done)], attempt))
    assert (
        strategy.expected_jobs
        == len(strategy.points)
        == max(len(batches), 1) * max(len(micro), 1)
    )
    for point in strategy.points:
        states = [outcome.status for outcome in done if outcome.overrides == point]
        assert 1 <= len(states) <= retries + 1
        assert "COMPLETED" not in states[:-1]
        assert states[-1] == "COMPLETED" or len(states) == retries + 1
    order = [outcome.overrides for outcome in done]
    assert order == sorted(order, key=strategy.points.index)


def test_what_is_under_way_is_not_started_twice() -> None:
    strategy = ParallelismStrategy(sweep={"batch_size": (1, 2)}, retries=5)
    assert strategy.next_config([StrategyJobEnd({"batch_size": 1}, "SUBMITTED")]) == {
        "batch_size": 2
    }
    assert ParallelismStrategy().next_config([StrategyJobEnd({}, "PENDING")]) is None


@pytest.mark.parametrize(
    ("section", "sizes"),
    [
        ({"kind": "tensor_across_nodes"}, (8, 1, 8, 1, 1)),
        ({"kind": "tensor_across_nodes", "nodes": 4}, (4, 1, 4, 1, 1)),
        (
            {"kind": "pipeline_across_nodes", "nodes": 2, "gpus_per_node": 2, "tp": 2},
            (2, 2, 2, 2, 1),
        ),
        ({"kind": "tensor_single_node", "gpus_per_node": 4, "dp": 2}, (1, 4, 2, 1, 2)),
        ({"kind": "hybrid", "nodes": 4, "gpus_per_node": 2}, (4, 2, 2, 4, 1)),
        ({"kind": "hybrid", "nodes": 2, "gpus_per_node": 4, "pp": 4}, (2, 4, 2, 4, 1)),
        (
            {
                "kind": "custom",
                "nodes": 2,
                "gpus_per_node": 4,
                "tp": 2,
                "pp": 2,
                "dp": 2,
            },
            (2, 4, 2, 2, 2),
        ),
        ({"kind": "custom"}, (1, 1, 1, 1, 1)),
    ],
)
def test_what_a_table_leaves_open_follows(
    section: dict[str, object], sizes: tuple[int, ...]
) -> None:
    made = strategies.build(StrategySection.model_validate(section))
    assert (
        made.num_nodes,
        made.gpus_per_node,
        made.tp_size,
        made.pp_size,
        made.dp_size,
    ) == sizes
    assert made.kind == section["kind"]


def test_two_strategies_of_one_folder_are_refused(tmp_path: Path) -> None:
    twice = (
        '\n[[strategies]]\nkind = "hybrid"\n[[strategies]]\nkind = "hybrid"\nname ='
        ' "again"\n'
    )
    with pytest.raises(
        InvalidInputError, match=r"strategies\.1: is the same layout as strategies\.0"
    ):
        strategies_of(make_study(tmp_path / "a", strategies=twice))
    named = (
        '\n[[strategies]]\nkind = "custom"\n[[strategies]]\nkind = "custom"\nnodes'
        " = 2\n"
    )
    with pytest.raises(InvalidInputError, match=r"strategies\.1\.name"):
        strategies_of(make_study(tmp_path / "b", strategies=named))


def test_results_carry_the_strategys_name() -> None:
    import pandas as pd

    frame = pd.DataFrame({"prompt_id": ["p01"]})
    assert list(HybridTensorPipeline().postprocess(frame)["strategy"]) == ["hybrid"]
    assert "strategy" not in frame
