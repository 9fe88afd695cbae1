"""Batches as they are submitted."""

import hashlib

import pytest
from pydantic import ValidationError

from gpuyard.domain.batches import BatchSpec, record

GOOD = {"script": "steps", "items": [{"path": "/a"}], "source": "/", "results": "/r"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"environment": {"CUDA_VISIBLE_DEVICES": "0"}}, "belongs to the scheduler"),
        ({"environment": {"GPUYARD_URL": "x"}}, "is set by gpuyard itself"),
        ({"environment": {"a b": "x"}}, "is not a variable name"),
        ({"items": []}, "at least 1 item"),
        ({"items": [{"path": ""}]}, "items.0.path"),
        ({"results": "here"}, "should match pattern"),
        ({"mode": "alone"}, "exclusive"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_queued(fields, said):
    with pytest.raises(ValidationError, match=said):
        BatchSpec.model_validate({**GOOD, **fields})


def test_the_record_is_the_documents():
    row = {
        "id": "whisper-urban-prepper-2025-02-05",
        "script": "whisper_transcribe",
        "total": 2,
        "mode": "exclusive",
    }
    items = [
        {"path": "/z.zim", "entry": "videos/abc.webm", "state": "completed"},
        {"path": "/b.webm", "entry": None, "state": "queued"},
    ]
    assert record(row, items) == {
        "batch_id": "whisper-urban-prepper-2025-02-05",
        "task_class": "script",
        "script": "whisper_transcribe",
        "total_items": 2,
        "completed": 1,
        "gpu_mode": "exclusive",
        "items": [
            {"video_path": "videos/abc.webm", "status": "complete"},
            {"video_path": "/b.webm", "status": "queued"},
        ],
    }


def test_a_key_means_the_same_batch_of_the_same_user_as_before_there_were_projects():
    batch = BatchSpec.model_validate(GOOD)
    fields = batch.model_dump_json(exclude={"project"})
    assert batch.digest() == hashlib.sha256(fields.encode()).hexdigest()
    of_project = BatchSpec.model_validate({**GOOD, "project": "vision"})
    digests = {batch.digest(), batch.digest("ann"), of_project.digest()}
    assert len(digests) == 3
