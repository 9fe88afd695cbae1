"""What is known of each class, and that nothing is missing."""

from enum import StrEnum

import pytest

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.verification.classes import (
    EXECUTOR_CLASSES,
    GPU_CLASS_OF,
    TRAITS,
    ExecutorClass,
    PracticeClass,
    class_of,
    require_complete,
    require_llm_classes,
)


def test_every_class_has_its_traits():
    assert set(TRAITS) == {*GPUClass, *PracticeClass}
    for cls in GPUClass:
        traits = TRAITS[cls]
        assert (traits.gpus, traits.memory_gb) == (1, GPU_CLASSES[cls].memory_gb)
        assert (
            traits.prompts > 0
            and traits.solve_s > 0
            and traits.prepare_s > 0
            and traits.spin_up_s >= 0
        )
    assert TRAITS[GPUClass.A6000].prompts == 240
    assert TRAITS[GPUClass.A6000].solve_s == 35
    assert [TRAITS[cls].prompts for cls in PracticeClass] == [12, 6]
    assert all(TRAITS[cls].gpus == TRAITS[cls].memory_gb == 0 for cls in PracticeClass)


def test_no_two_classes_have_one_name():
    assert {cls.value for cls in GPUClass}.isdisjoint(
        cls.value for cls in PracticeClass
    )


def test_executor_classes_are_those_of_the_seed_and_map_to_gpu_classes():
    assert {
        "spin_up-4min.gpu-24gb",
        "always_on.gpu-24gb",
        "always_on.llm.a6000",
    } <= set(ExecutorClass)
    assert set(EXECUTOR_CLASSES) == set(GPU_CLASS_OF) == set(ExecutorClass)
    assert GPU_CLASS_OF[ExecutorClass.ALWAYS_ON_LLM_A6000] is GPUClass.A6000
    assert GPU_CLASS_OF[ExecutorClass.ALWAYS_ON_GPU_24GB] is None
    assert EXECUTOR_CLASSES[ExecutorClass.SPIN_UP_4MIN_GPU_24GB].spin_up_time == 240
    for name, gpu_class in GPU_CLASS_OF.items():
        if gpu_class:
            assert (
                EXECUTOR_CLASSES[name].gpu_vram_gb == GPU_CLASSES[gpu_class].memory_gb
            )


def test_a_table_that_lacks_a_row_is_refused():
    class Colour(StrEnum):
        RED = "red"
        BLUE = "blue"

    require_complete("COLOURS", {Colour.RED: 1, Colour.BLUE: 2}, Colour)
    with pytest.raises(RuntimeError, match="COLOURS lacks blue"):
        require_complete("COLOURS", {Colour.RED: 1}, Colour)
    with pytest.raises(RuntimeError, match=r"always_on\.llm\.a6000"):
        require_llm_classes({**GPU_CLASS_OF, ExecutorClass.ALWAYS_ON_LLM_A6000: None})


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a6000", GPUClass.A6000),
        ("RTX 4090", GPUClass.RTX_4090),
        ("nvidia h200", GPUClass.H200),
        ("a100-80gb", GPUClass.A100_80GB),
        ("practice-12", PracticeClass.PRACTICE_12),
        (" Practice-6", PracticeClass.PRACTICE_6),
        ("always_on.llm.a6000", GPUClass.A6000),
        ("always_on.llm.a100-80gb", GPUClass.A100_80GB),
    ],
)
def test_a_class_by_its_name(name: str, found: object):
    assert class_of(name) is found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a100", "'a100' is more than one class; write one of a100-40gb, a100-80gb"),
        ("a600", "there is no GPU class 'a600'; nearest: a6000"),
        ("practice", "there is no class 'practice'; nearest: practice-6, practice-12"),
        ("", "there is no GPU class ''; there are: "),
        (
            "always_on.test",
            "'always_on.test' (nothing but a processor, for tests) runs no language"
            " model, so nothing can be compared; write one of always_on.llm.a6000,",
        ),
    ],
)
def test_an_unknown_class_is_refused_with_the_nearest(name: str, words: str):
    with pytest.raises(ValueError) as caught:
        class_of(name)
    assert words in str(caught.value)
