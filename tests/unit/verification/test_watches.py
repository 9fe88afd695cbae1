"""Watches: when they are due, and settings that name nobody."""

import pytest
from pydantic import ValidationError

from gpuyard.config.verification import VerificationSettings
from gpuyard.verification.executors import executor_named
from gpuyard.verification.watches import Watch, due_in_s

SETTINGS = {
    "executors": {"one": {"class": "practice-6"}, "other": {"class": "practice-6"}},
    "watches": {"often": {"executors": ["one", "other"], "every": "10m"}},
}


def watch() -> Watch:
    """The one of the settings."""
    settings = VerificationSettings.model_validate(SETTINGS)
    known = settings.executors
    executors = [executor_named(name, known, None) for name in ("one", "other")]
    return Watch(
        "often", tuple(executors), settings.watches["often"].every, frozenset()
    )


@pytest.mark.parametrize(
    ("newest", "due_s"),
    [
        ({}, 0),
        ({"one": 1000}, 0),  # the other never was verified
        ({"one": 1000, "other": 900}, 500),
        ({"one": 1000, "other": 100}, 0),
        ({"one": 9000, "other": 9000}, 600),  # the clock was set back
    ],
)
def test_a_watch_is_due_an_interval_after_its_oldest_check(
    newest: dict[str, float], due_s: float
) -> None:
    assert due_in_s(watch(), newest, 1000.0) == due_s


@pytest.mark.parametrize(
    ("watch", "words"),
    [
        (
            {"executors": ["two"]},
            "often.executors: 'two' is no executor of the settings",
        ),
        ({"executors": []}, "at least 1 item"),
        (
            {"executors": ["one"], "claims": ["all of it"]},
            "'inventory', 'vram', 'speed'",
        ),
    ],
)
def test_a_watch_that_cannot_be(watch: dict[str, object], words: str) -> None:
    settings = {**SETTINGS, "watches": {"often": watch}}
    with pytest.raises(ValidationError, match=words):
        VerificationSettings.model_validate(settings)
