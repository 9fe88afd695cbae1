"""The tree of errors: each has a code, a status and an exit code that programs rely
on.
"""

from collections import defaultdict

import pytest

from gpuyard.domain import errors
from gpuyard.domain.errors import Fault, GpuyardError, InvalidInputError, quoted


def tree(kind: type[GpuyardError] = GpuyardError) -> list[type[GpuyardError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]


ALL = [kind for kind in tree() if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_has_what_its_readers_need(kind):
    assert kind.code.isidentifier()
    assert kind.code.islower()
    assert 400 <= kind.status <= 599
    assert kind.exit_code in {1, 2, 3, 4, 5}
    assert kind.__doc__
    assert kind.__name__ in errors.__doc__ or kind is GpuyardError


def test_a_code_names_one_error():
    by_code = defaultdict(list)
    for kind in ALL:
        by_code[kind.code].append(kind.__name__)
    shared = {code: names for code, names in by_code.items() if len(names) > 1}
    # One fact with two faces: no node will ever have it, or the provider has none now.
    assert shared == {
        "insufficient_resources": ["CapacityError", "InsufficientResourcesError"]
    }


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        ("InvalidInputError", 2),
        ("NotFoundError", 3),
        ("JobNotFoundError", 3),
        ("RefusedError", 4),
        ("CapacityError", 4),
        ("LedgerTooNewError", 4),
        ("UnreachableError", 5),
    ],
)
def test_exit_codes_are_the_contracts(kind, exit_code):
    assert getattr(errors, kind).exit_code == exit_code


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("InvalidInputError", 422),
        ("NotFoundError", 404),
        ("IllegalMoveError", 409),
        ("UnauthorizedError", 401),
        ("DiskFullError", 507),
        ("JobNotFoundError", 404),
    ],
)
def test_statuses_are_http(kind, status):
    assert getattr(errors, kind).status == status


def test_the_text_is_the_whole_explanation():
    assert str(GpuyardError("It broke.", "Mend it.")) == "It broke. Mend it."
    assert str(GpuyardError("It broke.")) == "It broke."
    assert (
        str(InvalidInputError.of("a.b", "is bad", "make it good"))
        == "a.b: is bad (make it good)"
    )
    assert (
        str(InvalidInputError([Fault("a", "is bad"), Fault("b", "too")]))
        == "a: is bad; b: too"
    )


def test_provider_errors_carry_what_s2_says():
    missing = errors.JobNotFoundError("job-1", "cloud")
    assert (missing.provider, missing.error_code, missing.job_id) == (
        "cloud",
        "JOB_NOT_FOUND",
        "job-1",
    )
    short = errors.InsufficientResourcesError("no A100", "cloud", {"gpu_count": 8})
    assert (short.error_code, short.requested_spec) == (
        "INSUFFICIENT_RESOURCES",
        {"gpu_count": 8},
    )


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        "\x1b[31m\n",
        list(range(10**5)),
        {"a": {"b": "c" * 100}},
        10**400,
        None,
    ],
)
def test_a_quoted_value_is_one_short_printable_line(value):
    text = quoted(value)
    assert text.isprintable()
    assert 0 < len(text) <= 60


def test_a_short_value_is_quoted_whole():
    assert quoted("train.py") == "'train.py'"
