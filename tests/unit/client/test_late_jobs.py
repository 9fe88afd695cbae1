"""Jobs of sweeps and flows that start after the deadline of all of them."""

import time

from gpuyard.client.bodies import without_past_deadline


def test_a_deadline_that_has_passed_is_left_out() -> None:
    job = {"command": ["true"]}
    assert without_past_deadline(job) == job
    assert without_past_deadline({**job, "deadline": time.time() - 1}) == job
    later = {**job, "deadline": time.time() + 60}
    assert without_past_deadline(later) == later
