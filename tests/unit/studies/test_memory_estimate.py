"""Memory: the document's figures to the hundredth, and parameters of models whose
makers state them.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.studies.memory_estimate import (
    GIB,
    GenerationLoad,
    document_estimate,
    estimate,
)
from gpuyard.studies.model_folder import ModelShape, read_shape
from gpuyard.studies.strategies import (
    HybridTensorPipeline,
    ParallelismStrategy,
    TensorParallelSingleNode,
)

# What the safetensors of these models hold, and what their config.json states.
KNOWN = {
    "Llama-3.1-8B": (
        8_030_261_248,
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 128256,
        },
    ),
    "Llama-3.3-70B": (
        70_553_706_496,
        {
            "model_type": "llama",
            "hidden_size": 8192,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "intermediate_size": 28672,
            "vocab_size": 128256,
        },
    ),
    "Mistral-7B-v0.1": (
        7_241_732_096,
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
        },
    ),
    "Qwen2.5-7B": (
        7_615_616_512,
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "vocab_size": 152064,
        },
    ),
    "Qwen2.5-0.5B": (
        494_032_768,
        {
            "model_type": "qwen2",
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3-8B": (
        8_190_735_360,
        {
            "model_type": "qwen3",
            "hidden_size": 4096,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 12288,
            "vocab_size": 151936,
        },
    ),
    # Its config.json leaves out that the head is the embedding.
    "gemma-7b": (
        8_537_680_896,
        {
            "model_type": "gemma",
            "hidden_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "intermediate_size": 24576,
            "vocab_size": 256000,
        },
    ),
    "Mixtral-8x7B-v0.1": (
        46_702_792_704,
        {
            "model_type": "mixtral",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    # Without the layer that predicts further tokens.
    "DeepSeek-V3": (
        671_026_419_200,
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "first_k_dense_replace": 3,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 129280,
        },
    ),
}


def shape_of(folder: Path, config: dict[str, Any]) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(config))
    return read_shape(folder)


def test_the_documents_figures() -> None:
    assert document_estimate(70e9, 8, 1, "2k") == 24.93
    assert document_estimate(70e9, 8, 1, "4k") == 25.55
    assert document_estimate(70e9, 4, 2, "4k") == 25.55


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_are_those_of_the_real_model(name: str, tmp_path: Path) -> None:
    parameters, config = KNOWN[name]
    assert shape_of(tmp_path, config).parameters == parameters


def test_the_estimate_of_a_70b_model(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, KNOWN["Llama-3.3-70B"][1])
    found = estimate(
        shape, TensorParallelSingleNode(), GenerationLoad(batch_size=8, length=2048)
    )
    assert found.weights == pytest.approx(70_553_706_496 * 2 / 8 / GIB, rel=0.001)
    assert found.kv_cache == pytest.approx(5.0 / 8)
    assert (
        found.total
        == found.weights + found.kv_cache + found.activations + found.overhead
    )


SIZES = st.sampled_from([1, 2, 4])


@given(
    SIZES,
    SIZES,
    st.integers(1, 16),
    st.integers(1, 8192),
    st.sampled_from(["fp32", "bf16"]),
)
def test_more_gpus_need_no_more_each_and_larger_batches_no_less(
    tp: int, pp: int, batch: int, length: int, precision: str
) -> None:
    shape = ModelShape("llama", 64, 4, 8, 4, 8, 128, 320, False, False, False, False)
    layout = ParallelismStrategy(tp_size=tp, pp_size=pp)
    load = GenerationLoad(batch, length, precision=precision)
    here = estimate(shape, layout, load)
    alone = estimate(shape, ParallelismStrategy(), load)
    assert here.total <= alone.total
    assert here.weights * tp * pp >= alone.weights * 0.999
    assert (
        estimate(
            shape, layout, GenerationLoad(batch + 1, length, precision=precision)
        ).total
        > here.total
    )


def test_a_pipelines_fullest_stage_counts() -> None:
    shape = ModelShape("llama", 64, 5, 8, 4, 8, 128, 320, False, False, False, False)
    found = estimate(shape, HybridTensorPipeline(), GenerationLoad(1, 1))
    assert (
        found.weights
        == (3 * shape.layer_parameters + shape.embedding_parameters) * 2 / 4 / GIB
    )


def test_micro_batches_save_nothing_without_a_pipeline() -> None:
    shape = ModelShape("llama", 64, 4, 8, 4, 8, 128, 320, False, False, False, False)
    alone = ParallelismStrategy()
    piped = ParallelismStrategy(pp_size=2)
    assert estimate(shape, alone, GenerationLoad(8, 100, 4)) == estimate(
        shape, alone, GenerationLoad(8, 100)
    )
    assert (
        estimate(shape, piped, GenerationLoad(8, 100, 4)).activations
        < estimate(shape, piped, GenerationLoad(8, 100)).activations
    )
