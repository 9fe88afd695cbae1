"""Engines and options of single strategies: what an engine does not have is refused."""

from pathlib import Path

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies.cluster_checks import NodeKind, check_offers
from gpuyard.studies.plan import plan
from gpuyard.studies.runtime.experiment import SERVED
from gpuyard.studies.runtime.server_commands import SERVERS
from gpuyard.studies.strategies import strategies_of
from gpuyard.studies.strategy_checks import study_faults
from gpuyard.studies.validation import validate_study
from tests.unit.studies.folders import make_study

ONE = '[[strategies]]\nkind = "custom"\n'
TWO_NODES = ONE + 'name = "s"\nnodes = 2\n'


@pytest.mark.parametrize(
    ("table", "field", "words"),
    [
        ('engine = "tensorrt_llm"\npp = 2', "nodes", "starts tensorrt_llm on one node"),
        ('engine = "tensorrt_llm"\ndp = 2', "dp", "to torch, vllm_server or sglang"),
        ('engine = "sglang"\ndp = 2', "dp", "replicas of sglang stay on one node"),
        ('engine = "vllm"\ndp = 2', "dp", "no dp beyond 1"),
        ("pp = 2\nengine_options = { x = 1 }", "engine_options", "torch takes none"),
        (
            'pp = 2\nengine = "vllm"\nengine_options = { tensor_parallel_size = 4 }',
            "engine_options.tensor_parallel_size",
            "is set by the study (use tp)",
        ),
        (
            'pp = 2\nquantization = "fp8"',
            "quantization",
            "torch does not round weights",
        ),
        ('pp = 2\nquantized_model = "q"', "quantized_model", "no rounded weights"),
    ],
)
def test_what_an_engine_does_not_have(
    tmp_path: Path, table: str, field: str, words: str
) -> None:
    study = make_study(tmp_path, strategies=f"{TWO_NODES}{table}\n")
    found = {fault.field: str(fault) for fault in study_faults(study)}
    assert words in found[f"strategies.0.{field}"], found


def test_options_need_a_name_to_be_told_apart(tmp_path: Path) -> None:
    table = 'engine = "vllm"\nengine_options = { max_model_len = 64 }\n'
    (fault,) = study_faults(make_study(tmp_path, strategies=ONE + table))
    assert fault.field == "strategies.0.name"
    named = f'{ONE}name = "short texts"\n{table}'
    study = make_study(tmp_path, strategies=f'{ONE}{named}{ONE}name = "b"\n{table}')
    assert study_faults(study) == []
    assert [one.strategy_id("m") for one in strategies_of(study)] == [
        "m_pp1_tp1",
        "m_pp1_tp1_vllm_short-texts",
        "m_pp1_tp1_vllm_b",
    ]
    names = [f'{ONE}name = "{name}"\n{table}' for name in ("日本", "中国")]
    study = make_study(tmp_path, strategies="".join(names))
    assert study_faults(study) == []
    assert len({one.strategy_id("m") for one in strategies_of(study)}) == 2


@pytest.mark.parametrize(
    ("extra", "table", "words"),
    [
        (
            "",
            "engine_options = { a = [1] }",
            "strategies.0.engine_options.a: '[1]' is not a single value",
        ),
        ("[load]\nrates = []\n", "", "load.rates: is empty"),
        ("[load]\nrates = [0]\n", "", "load.rates.0: is 0 (must be more than 0"),
    ],
)
def test_one_clear_fault(tmp_path: Path, extra: str, table: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make_study(tmp_path, extra, f"{ONE}{table}\n")
    (fault,) = caught.value.faults
    assert words in str(fault)


def test_rounded_weights_need_less_memory(tmp_path: Path) -> None:
    rounded = (
        f'{ONE}name = "q"\nengine = "vllm"\nquantization = "fp8"\n'
        f'{ONE}name = "f"\nengine = "vllm"\nquantized_model = "awq"\n'
    )
    study = make_study(tmp_path, strategies=ONE + rounded, hidden_size=4096)
    assert study.strategies[2].quantized_model == tmp_path / "awq"
    weights = {row.name: row.weights_gib for row in plan(study)}
    assert weights["custom"] == pytest.approx(2 * weights["q"], rel=0.1)
    assert weights["q"] == pytest.approx(2 * weights["f"], rel=0.1)


def test_the_runtime_and_the_study_know_the_same_servers() -> None:
    assert set(SERVED) == set(SERVERS)


DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4096,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}


def test_serving_engines_may_run_other_families(tmp_path: Path) -> None:
    table = f'{ONE}engine = "vllm_server"\n'
    study = make_study(tmp_path, strategies=table, model_type="phi3")
    assert study_faults(study) == []
    (warning,) = [one for one in validate_study(study).warnings if "phi3" in one]
    assert "whether it fits" in warning
    nodes = [NodeKind("gpu", 1, "", 1, 0.001)]
    assert check_offers(study, nodes).faults == (), "what it needs is not known"
    mixed = f'{table}{ONE}name = "b"\n'
    (fault, *_) = study_faults(make_study(tmp_path, strategies=mixed))
    assert "of the family 'phi3'" in str(fault)


def test_experts_and_latent_vectors_are_split_as_the_engine_does(
    tmp_path: Path,
) -> None:
    wide = '[[strategies]]\nkind = "custom"\ngpus_per_node = 8\ntp = 8\n'
    serving = f'{wide}name = "served"\nengine = "vllm_server"\n'
    study = make_study(tmp_path, strategies=wide + serving, **DEEPSEEK)
    (fault,) = study_faults(study)
    assert fault.field == "strategies.0.tp"
    assert "does not divide 20 columns of an expert" in fault.fault
    torch, served = (row for row in plan(study) if row.variant == "2k")
    # 8 heads of 32 + 16 + 32 channels on 8 GPUs, against 64 + 16 on each of them.
    assert torch.kv_cache_gib == served.kv_cache_gib > 0
