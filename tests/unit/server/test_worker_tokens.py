"""The tokens of workers, by themselves."""

import pytest

from gpuyard.config.proof import digest_of
from gpuyard.domain.errors import ForbiddenError
from gpuyard.server.worker_tokens import (
    WorkerClaim,
    issue,
    looks_like_worker_token,
    read,
)

FIRST = digest_of("first")
SECOND = digest_of("second")
CLAIM = WorkerClaim("attempt_1", 3, "steps-in-2026-01-01")
TAKE = "POST /api/v1/batches/steps-in-2026-01-01/take"


def test_each_server_of_the_instance_knows_what_another_has_issued() -> None:
    token = issue(FIRST, CLAIM)
    assert looks_like_worker_token(token)
    assert read([SECOND, FIRST], token) == CLAIM
    assert read([SECOND], token) is None


def test_a_claim_that_was_changed_is_none() -> None:
    kind, content, signature = issue(FIRST, CLAIM).split(".")
    other = issue(FIRST, WorkerClaim("attempt_2", 3, CLAIM.batch_id)).split(".")[1]
    for forged in (
        f"{kind}.{other}.{signature}",
        f"{kind}.{content}.{signature[:-1]}",
        f"{kind}.{content}.",
        f"{kind}.{content}",
        f"{kind}.",
    ):
        assert read([FIRST], forged) is None
    assert not looks_like_worker_token(f"{kind}.\xe4")


def test_it_is_worth_one_call() -> None:
    CLAIM.check_call(TAKE)
    for what in (
        "GET /api/v1/jobs",
        "POST /api/v1/jobs",
        "GET /api/v1/batches/steps-in-2026-01-01/take",
        "POST /api/v1/batches/steps-in-2026-01-02/take",
        "POST /api/v1/batches/steps-in-2026-01-01/cancel",
        "POST /v1/chat/completions",
        "WEBSOCKET /api/v1/agent",
    ):
        with pytest.raises(ForbiddenError):
            CLAIM.check_call(what)


@pytest.mark.parametrize("fence", [None, 2, 4])
def test_it_dies_with_its_attempt(fence: int | None) -> None:
    CLAIM.check_life(3)
    with pytest.raises(ForbiddenError, match="is over"):
        CLAIM.check_life(fence)


def test_a_worker_speaks_for_itself() -> None:
    CLAIM.check_attempt("attempt_1")
    with pytest.raises(ForbiddenError, match="attempt_1"):
        CLAIM.check_attempt("attempt_2")
