"""What is stored in `provider_options` of workers and servers of models."""

import pytest

from gpuyard.domain.jobspec import GpuRequest, JobKind, JobSpec, Resources
from gpuyard.domain.own_options import ModelPlace, WorkerOrder
from gpuyard.domain.shape import Shape

SETTINGS = {"file": "/work/train.py", "python": None, "silent_s": 1200.0}


def test_what_is_stored_for_a_worker_is_read_again() -> None:
    order = WorkerOrder(SETTINGS, "batch_1", "/results/batch_1", "GPU-1")
    own = {"batch": "batch_1", "results": "/results/batch_1", "gpu": "GPU-1"}
    assert order.to_options() == {"script": {**SETTINGS, **own}}
    assert WorkerOrder.read(order.to_options()) == order


def test_a_script_without_a_batch_stores_its_settings_only() -> None:
    order = WorkerOrder(SETTINGS)
    assert order.to_options() == {"script": SETTINGS}
    assert WorkerOrder.read(order.to_options()) == order
    assert WorkerOrder.read({}) == WorkerOrder({})


def test_the_place_of_a_model_is_read_in_both_forms() -> None:
    place = ModelPlace(8001, ("GPU-1", "GPU-2"))
    assert place.to_options() == {"port": 8001, "gpus": ["GPU-1", "GPU-2"]}
    assert ModelPlace.read(place.to_options()) == place
    older = ModelPlace.read({"port": 8001, "gpu": "GPU-1"})
    assert older == ModelPlace(8001, ("GPU-1",))


@pytest.mark.parametrize("joined", [True, False])
def test_a_model_and_a_script_go_to_joined_machines_where_the_settings_say_so(
    joined: bool,
) -> None:
    place = ModelPlace(8001, ("GPU-1",), joined)
    assert ModelPlace.read(place.to_options()) == place
    server = JobSpec(
        kind=JobKind.MODEL,
        command=("serve",),
        model="chat",
        provider_options=place.to_options(),
    )
    # Beside another, it books no GPU, and must be on the node of that all the same.
    assert Shape.of(server).gpu_uuids == ("GPU-1",)
    assert Shape.of(server).portable is joined
    order = WorkerOrder({**SETTINGS, "joined": joined}, "batch_1", "/results")
    worker = JobSpec(
        kind=JobKind.WORKER,
        script="steps",
        resources=Resources(gpus=GpuRequest(count=1)),
        provider_options=order.to_options(),
    )
    assert Shape.of(worker).portable is joined
    # The folder in which a script works is on the server's machine.
    assert not Shape.of(worker.model_copy(update={"workdir": "/work"})).portable
