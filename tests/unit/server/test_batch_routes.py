"""What workers of batches say, as it is taken."""

from gpuyard.node.items import _fault  # pyright: ignore[reportPrivateUsage]
from gpuyard.server.routers.batches import Take


def test_a_fault_of_any_length_is_taken() -> None:
    long = "x" * 20_000
    taken = Take.model_validate(
        {"attempt_id": "a", "fault": long, "done": {"number": 1, "fault": long}}
    )
    assert taken.done
    assert (taken.fault, taken.done.fault) == (long[:10_000], long[:10_000])


def test_what_a_script_raises_can_be_sent() -> None:
    fault = _fault(ValueError("\udcff" + "x" * 2_000_000))
    assert fault.startswith("ValueError: ?xxx")
    assert len(fault) == 10_000
