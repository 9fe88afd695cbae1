"""What is refused before anything is submitted: each fault names its field and a
remedy.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies.model_folder import INDEX, ModelShape
from gpuyard.studies.plan import plan
from gpuyard.studies.strategies import ParallelismStrategy
from gpuyard.studies.strategy_checks import (
    model_warnings,
    split_faults,
    study_faults,
)
from gpuyard.studies.study import load_study
from tests.unit.studies.folders import make_model, make_study


def faults(tmp_path: Path, strategies: str = "", extra: str = "") -> str:
    more = {"strategies": f"\n[[strategies]]\n{strategies}\n"} if strategies else {}
    found = study_faults(make_study(tmp_path, extra, **more))
    assert found
    return str(InvalidInputError(found))


def test_a_study_that_can_run_has_no_faults(tmp_path: Path) -> None:
    assert study_faults(make_study(tmp_path)) == []


def test_products_must_be_equal(tmp_path: Path) -> None:
    said = faults(tmp_path, 'kind = "custom"\nnodes = 2\ngpus_per_node = 2\ntp = 2')
    assert (
        said
        == "strategies.0: tp 2 x pp 1 x dp 1 = 2 processes, but 2 nodes x 2 GPUs = 4"
        " (make the two products equal)"
    )


def test_three_ways_over_four_heads(tmp_path: Path) -> None:
    said = faults(tmp_path, 'kind = "custom"\nnodes = 3\ntp = 3')
    assert said.startswith(
        "strategies.0.tp: 3-way tensor parallelism does not divide 8 attention heads, 4"
        " KV heads"
    )
    assert said.endswith("(for this model tp may be 1, 2 or 4)")


def test_more_stages_than_layers(tmp_path: Path) -> None:
    said = faults(tmp_path, 'kind = "custom"\nnodes = 5\npp = 5')
    assert (
        said == "strategies.0.pp: 5 stages, but the model has 4 layers (use at most 4)"
    )


@given(
    st.integers(1, 32),
    st.integers(1, 32),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 16),
)
def test_the_ways_that_are_offered_are_all_that_divide(
    heads: int, groups: int, wide: int, words: int, tp: int
) -> None:
    shape = ModelShape(
        "llama",
        64,
        4,
        heads * groups,
        heads,
        8,
        wide,
        words,
        False,
        False,
        False,
        False,
    )
    found = split_faults(ParallelismStrategy(tp_size=tp), shape, "s")
    sizes = (heads * groups, heads, wide, words)
    assert bool(found) == any(size % tp for size in sizes)
    if found:
        offered = [
            int(word)
            for word in found[0]
            .remedy.rpartition("may be ")[2]
            .replace(" or ", ", ")
            .split(", ")
        ]
        assert offered == [
            ways for ways in range(1, 65) if not any(size % ways for size in sizes)
        ]


DEEPSPEED, VLLM = (
    f'[generation]\nengine = "{name}"\n' for name in ("deepspeed", "vllm")
)


def test_layouts_that_an_engine_does_not_have(tmp_path: Path) -> None:
    found = study_faults(make_study(tmp_path, DEEPSPEED))
    assert [fault.field for fault in found] == ["strategies.1.pp", "strategies.3.pp"]
    assert (
        str(found[0])
        == "strategies.1.pp: is 4, but the engine deepspeed has no pp beyond 1 "
        "(set it to 1, or generation.engine to torch or vllm)"
    )
    replicas = '\n[[strategies]]\nkind = "custom"\nnodes = 2\ndp = 2\n'
    (fault,) = study_faults(make_study(tmp_path, VLLM, replicas))
    assert (fault.field, fault.remedy) == (
        "strategies.0.dp",
        "set it to 1, or generation.engine to torch, vllm_server or sglang",
    )
    assert [row.reason[:6] for row in plan(make_study(tmp_path, VLLM, replicas))] == [
        "is 2, "
    ] * 2


def test_one_node_is_one_node(tmp_path: Path) -> None:
    said = faults(tmp_path, 'kind = "tensor_single_node"\nnodes = 2\ngpus_per_node = 2')
    assert (
        said
        == "strategies.0.nodes: is 2, but tensor_single_node is of one node (leave it"
        " out, or choose tensor_across_nodes)"
    )


@pytest.mark.parametrize(
    ("engine", "kind", "words"),
    [
        ("torch", "tensor_across_nodes", "there is no pipeline"),
        ("vllm", "pipeline_across_nodes", "vllm has its own"),
        ("torch", "pipeline_across_nodes", ""),
    ],
)
def test_a_sweep_that_changes_nothing_is_not_run(
    tmp_path: Path, engine: str, kind: str, words: str
) -> None:
    sweep = f'\n[[strategies]]\nkind = "{kind}"\nnodes = 4\nmicro_batches = [1, 2]\n'
    found = study_faults(
        make_study(tmp_path, f'[generation]\nengine = "{engine}"\n', sweep)
    )
    assert [fault.field for fault in found] == (
        ["strategies.0.micro_batches"] if words else []
    )
    assert not words or words in found[0].fault


def test_vllm_pads_words_and_repeats_kv_heads(tmp_path: Path) -> None:
    eight = '\n[[strategies]]\nkind = "tensor_single_node"\n'
    assert study_faults(make_study(tmp_path, VLLM, eight, vocab_size=321)) == []
    study = make_study(tmp_path, "", eight)
    (fault,) = study_faults(study)
    assert "4 KV heads, 321 words" in fault.fault
    three = '\n[[strategies]]\nkind = "tensor_across_nodes"\nnodes = 3\n'
    (fault,) = study_faults(make_study(tmp_path, VLLM, three))
    assert (
        "3-way" in fault.fault
        and fault.remedy == "for this model tp may be 1, 2, 4 or 8"
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope 'dynamic'"),
        ({"rope_scaling": {"type": "yarn"}}, "has no 'factor'"),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "states something odd"),
        ({"quantization_config": {"quant_method": "fp8"}}, "rounded weights (fp8)"),
        ({"rope_scaling": "yarn"}, "states something odd"),
    ],
)
def test_what_the_torch_engine_would_refuse_is_refused_before(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    (fault,) = study_faults(make_study(tmp_path, **config))
    assert fault.field == "model.path" and words in fault.fault and fault.remedy
    assert study_faults(make_study(tmp_path, VLLM)) == []


def test_deepspeed_does_not_split_rounded_weights(tmp_path: Path) -> None:
    engine = '[generation]\nengine = "deepspeed"\n'
    one = '\n[[strategies]]\nkind = "tensor_across_nodes"\nnodes = 2\n'
    rounded = {"quantization_config": {"quant_method": "fp8"}}
    (fault,) = study_faults(make_study(tmp_path, engine, one, **rounded))
    assert "(fp8), which the engine deepspeed cannot split" in fault.fault
    assert "vllm_server" in fault.remedy


def test_the_longer_variant_decides_whatever_its_name(tmp_path: Path) -> None:
    folder = (
        make_study(tmp_path, "[slurm]\ngpu_memory_gb = 2.05\n").directory / "study.toml"
    )
    text = folder.read_text()
    folder.write_text(
        text.replace("[prompts]\n", "[prompts]\nbudgets = { 2k = 60000, 4k = 10 }\n")
    )
    found = study_faults(load_study(tmp_path))
    assert len(found) == 4 and all("GiB per GPU" in fault.fault for fault in found)


def test_what_does_not_fit_says_by_how_much(tmp_path: Path) -> None:
    study = make_study(tmp_path, "[slurm]\ngpu_memory_gb = 1\n")
    found = study_faults(study)
    assert len(found) == 4
    assert "GiB per GPU" in found[0].fault and "a GPU has 1" in found[0].fault
    assert all(not row.fits and "a GPU has 1" in row.reason for row in plan(study))


def test_a_plan_says_why_a_layout_cannot_be(tmp_path: Path) -> None:
    three = (
        '\n[[strategies]]\nkind = "custom"\nnodes = 3\ntp = 3\nbatch_size = [1, 2]\n'
    )
    rows = plan(make_study(tmp_path, strategies=three))
    assert [(row.strategy_id, row.variant, row.batch_size) for row in rows] == [
        ("tiny8b_pp1_tp3_n3_b1", "2k", 1),
        ("tiny8b_pp1_tp3_n3_b1", "4k", 1),
        ("tiny8b_pp1_tp3_n3_b2", "2k", 2),
        ("tiny8b_pp1_tp3_n3_b2", "4k", 2),
    ]
    assert all(
        row.fits is False and "3-way" in row.reason and "1, 2 or 4" in row.reason
        for row in rows
    )


def test_without_the_gpus_memory_nobody_knows_whether_it_fits(tmp_path: Path) -> None:
    rows = plan(make_study(tmp_path))
    assert len(rows) == 8
    assert all(
        row.fits is None and row.world_size == 4 and not row.reason for row in rows
    )


def test_a_model_with_shards_is_whole(tmp_path: Path) -> None:
    make_model(tmp_path / "model", shards=3)
    assert study_faults(make_study(tmp_path)) == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "no JSON object"),
        (
            lambda folder: (folder / "config.json").write_text("[" * 100_000),
            "cannot be read",
        ),
        (
            lambda folder: (folder / "config.json").write_text(
                '{"model_type": "mamba"}'
            ),
            "family 'mamba'",
        ),
        (
            lambda folder: (folder / "config.json").write_text(
                '{"model_type": "llama"}'
            ),
            "states no hidden_size",
        ),
        (lambda folder: (folder / INDEX).unlink(), "neither"),
        (
            lambda folder: (folder / INDEX).write_text('{"weight_map": {}}'),
            "names no weights",
        ),
        (
            lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
            "lacks model-00002-of-00003",
        ),
        (
            lambda folder: (folder / "model-00003-of-00003.safetensors").write_bytes(
                b"version https://"
            ),
            "cut off",
        ),
    ],
    ids=[
        "no config",
        "half a config",
        "a list",
        "deep",
        "family",
        "no sizes",
        "no index",
        "empty index",
        "shard",
        "pointer",
    ],
)
def test_a_model_that_is_not_whole(tmp_path: Path, spoil: object, words: str) -> None:
    assert callable(spoil)
    spoil(make_model(tmp_path / "model", shards=3))
    said = faults(tmp_path)
    assert said.startswith("model.path: ") and words in said and said.endswith(")")


def test_a_shard_that_is_cut_off(tmp_path: Path) -> None:
    shard = make_model(tmp_path / "model") / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "cut off" in faults(tmp_path)


def test_a_shard_that_cannot_be_read(tmp_path: Path) -> None:
    shard = make_model(tmp_path / "model") / "model.safetensors"
    shard.unlink()
    # A file whose first bytes nobody can read, root neither.
    shard.symlink_to("/proc/self/mem")
    assert "model.safetensors cannot be read: " in faults(tmp_path)


def test_no_model_and_a_wrong_layout_are_both_said(tmp_path: Path) -> None:
    make_study(tmp_path, strategies='\n[[strategies]]\nkind = "custom"\ntp = 2\n')
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    found = study_faults(load_study(tmp_path))
    assert [fault.field for fault in found] == ["model.path", "strategies.0"]


def test_what_is_odd_is_a_warning(tmp_path: Path) -> None:
    study = make_study(tmp_path, max_position_embeddings=4096)
    warnings = model_warnings(study.model.path, study)
    assert "no tokenizer.json" in warnings[0]
    assert "4352 tokens" in warnings[1] and "4096" in warnings[1]
    config = json.loads((study.model.path / "config.json").read_text())
    assert config["model_type"] == "llama"
