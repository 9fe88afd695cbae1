"""Who is blamed when a check is stopped by an error.

What an executor or its host controls counts against it. Only what shows a fault of ours
is blameless. docs/verification.md has the table.
"""

from collections.abc import Generator
from contextlib import contextmanager

import structlog

from gpuyard.domain.errors import (
    ForbiddenError,
    GpuyardError,
    InvalidInputError,
    LedgerError,
    RequestRefusedError,
    UnauthorizedError,
    UnreachableError,
)
from gpuyard.verification.answers import AnswersError
from gpuyard.verification.channels import GoneError
from gpuyard.verification.check import Check
from gpuyard.verification.database import DatabaseError
from gpuyard.verification.protocol import ProtocolError
from gpuyard.verification.solver_jobs import NotStartedError
from gpuyard.verification.waiting import Obstacle

log = structlog.get_logger(__name__)
# Errors that show a fault of the instance, whatever an executor does.
_OURS = (
    DatabaseError,
    ForbiddenError,
    LedgerError,
    RequestRefusedError,
    UnauthorizedError,
    UnreachableError,
)


@contextmanager
def explained(check: Check) -> Generator[None]:
    """Write the errors of this block into the check."""
    try:
        yield
    except NotStartedError as error:
        _note_wait(check, error)
    except (ProtocolError, AnswersError) as error:
        if check.sha256:
            check.unread = str(error)
        else:
            check.silence = str(error)
    except GoneError as error:
        if error.ours:
            check.fault = f"we ended its job: {error}"
        else:
            check.silence = check.unread = str(error)
    except TimeoutError:
        check.silence = (
            "its solver did not get ready in time"
            if check.ready_at is None
            else "nothing came in time"
        )
        check.unread = "the file did not follow its hash"
    except (*_OURS, OSError) as error:
        check.fault = f"it could not be asked: {error}"
    except GpuyardError as error:
        _blame(check, error)
    except Exception as error:  # it must not stop the other checks
        log.exception("verification_check_failed", check=check.id)
        check.unexplained = f"{type(error).__name__}: {error}"


def _note_wait(check: Check, error: NotStartedError) -> None:
    """Note why the job of a check did not begin."""
    match error.obstacle:
        case Obstacle.OTHER_JOBS:
            check.waited = f"its place has other work: {error}"
        case Obstacle.OWN_RULE:
            check.fault = f"a rule of ours keeps its job back: {error}"
        case Obstacle.UNKNOWN:
            check.unexplained = str(error)


def _blame(check: Check, error: GpuyardError) -> None:
    """Hold an error of the instance against the executor, if its job caused it.

    A place can refuse a job, and spoil what it says of it. Only what the settings say
    is wrong on our side.
    """
    if check.channel and check.channel.job_id:
        check.silence = check.unread = f"its job cannot be read: {error}"
    elif isinstance(error, InvalidInputError):
        check.fault = f"it could not be asked: {error}"
    else:
        check.unexplained = f"its place takes no job: {error}"
