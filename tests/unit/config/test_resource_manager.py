"""The seed document's table `[resource_manager]`."""

import json

import pytest
from pydantic import ValidationError

from gpuyard.config.paths import Home
from gpuyard.config.resource_manager import ResourceManagerSettings
from gpuyard.config.settings import load_settings
from gpuyard.domain.errors import InvalidInputError

DOCUMENT = {
    "gpu_count": 5,
    "gpu_roles": {
        "0": "brain_primary",
        "1": "worker_or_script",
        "3": "brain_secondary",
    },
    "boot_times": {"qwen2.5:14b": 160, "whisper:small.en": 5},
    "batch_settings": {"auto_exclusive_threshold": 50, "reload_llms_after_batch": True},
    "eviction_policy": {
        "min_script_queue_for_evict": 5,
        "prefer_idle_llm_eviction": True,
        "never_evict_brain": True,
    },
}


def test_the_documents_own_table_is_taken():
    settings = ResourceManagerSettings.model_validate(DOCUMENT)
    assert settings.boot_times["qwen2.5:14b"] == 160
    assert [settings.is_brain(index, f"GPU-{index}") for index in range(4)] == [
        True,
        False,
        False,
        True,
    ]


def test_the_document_may_be_a_file_of_json(tmp_path, monkeypatch):
    path = tmp_path / "resources.json"
    path.write_text(json.dumps({"resource_manager": DOCUMENT}))
    monkeypatch.setenv("GPUYARD_CONFIG", str(path))
    settings = load_settings(Home(tmp_path)).resource_manager
    assert (settings.gpu_count, settings.batch_settings.auto_exclusive_threshold) == (
        5,
        50,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not valid JSON"),
        ('{"resource_manager": {"gpus": 5}}', "resource_manager.gpus: is not a field"),
        ("[5]", "is no table of settings"),
    ],
)
def test_a_file_of_json_that_is_wrong_is_refused_with_its_name(
    text, said, tmp_path, monkeypatch
):
    path = tmp_path / "resources.json"
    path.write_text(text)
    monkeypatch.setenv("GPUYARD_CONFIG", str(path))
    with pytest.raises(InvalidInputError, match=said) as refused:
        load_settings(Home(tmp_path))
    assert str(path) in str(refused.value)


def test_a_role_may_be_given_by_uuid_and_a_brain_may_be_evicted_if_one_says_so():
    by_uuid = ResourceManagerSettings.model_validate(
        {"gpu_roles": {"GPU-a": "brain_primary"}}
    )
    assert by_uuid.is_brain(7, "GPU-a")
    evicted = {**DOCUMENT, "eviction_policy": {"never_evict_brain": False}}
    assert not ResourceManagerSettings.model_validate(evicted).is_brain(0, "GPU-0")


def test_roles_rank_the_gpus_of_the_brain():
    settings = ResourceManagerSettings.model_validate(DOCUMENT)
    assert settings.brain_ranks == {"0": 2, "1": 0, "3": 1}


def test_default_models_must_be_among_the_models(tmp_path, monkeypatch):
    monkeypatch.delenv("GPUYARD_CONFIG", raising=False)
    home = Home(tmp_path)
    text = '[resource_manager.default_models]\nparse = "small"\n'
    section = '[models.small]\nengine = "ollama"\nmemory_gb = 8\n'
    home.settings.write_text(text + section)
    assert load_settings(home).resource_manager.default_models == {"parse": "small"}
    home.settings.write_text(text)
    with pytest.raises(InvalidInputError) as refused:
        load_settings(home)
    (fault,) = refused.value.faults
    assert fault.field.endswith("gpuyard.toml: resource_manager.default_models.parse")
    assert fault.fault == "there is no model 'small'"


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpu_roles": {"0": "boss"}},
        {"boot_times": {"x": -1}},
        {"gpu_counts": 5},
        {"default_models": {"transcribe": "small"}},
        {"cooling_s": -1},
    ],
)
def test_what_is_wrong_is_refused(wrong):
    with pytest.raises(ValidationError):
        ResourceManagerSettings.model_validate(wrong)
