import pytest

from gpuyard.scheduler.policy import Policy, backoff_s


def test_backoff_doubles_and_is_bounded():
    policy = Policy(retry_base_s=2.0, retry_max_s=60.0)
    assert [backoff_s(policy, failures) for failures in range(1, 8)] == [
        2,
        4,
        8,
        16,
        32,
        60,
        60,
    ]


def test_backoff_of_nothing_is_nothing():
    assert backoff_s(Policy(), 0) == 0.0
    assert backoff_s(Policy(), -3) == 0.0


def test_backoff_survives_absurd_counts():
    assert backoff_s(Policy(), 10**9) == Policy().retry_max_s


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ({"ageing_s": 0}, "ageing_s"),
        ({"ageing_s": float("nan")}, "ageing_s"),
        ({"retry_base_s": -1}, "retry_base_s"),
        ({"end_margin_s": -1}, "end_margin_s"),
        ({"reserved_heads": 0}, "reserved_heads"),
    ],
)
def test_senseless_settings_are_refused_by_name(setting, word):
    with pytest.raises(ValueError, match=word):
        Policy(**setting)
