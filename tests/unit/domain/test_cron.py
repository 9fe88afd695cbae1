"""At which moments a cron expression is due, above all where clocks are changed."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.domain.cron import NICKNAMES, CronTimes, five_fields, time_zone
from tests.support.examples import examples

BERLIN = ZoneInfo("Europe/Berlin")
# On 29 March 2026 it is 03:00 after 01:59; on 25 October, 02:00 comes again after 02:59.
SPRING = datetime(2026, 3, 28, 12, 0, tzinfo=BERLIN).timestamp()
AUTUMN = datetime(2026, 10, 24, 12, 0, tzinfo=BERLIN).timestamp()


def times(expression: str, start: float, count: int) -> list[str]:
    """The next times as a clock on the wall shows them, with the offset to UTC."""
    found: list[str] = []
    moment: float | None = start
    for _ in range(count):
        moment = CronTimes(expression, "Europe/Berlin").next_after(moment)
        assert moment is not None
        found.append(f"{datetime.fromtimestamp(moment, BERLIN):%d %H:%M%z}")
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 2 * * *", ["29 03:00+0200", "30 02:30+0200"]),
        ("0,30 2 * * *", ["29 03:00+0200", "30 02:00+0200"]),
        ("*/10 2 * * *", ["29 03:00+0200", "30 02:00+0200"]),
        ("0 */12 * * *", ["29 00:00+0100", "29 12:00+0200"]),
        ("0 2-23/21 * * *", ["28 23:00+0100", "29 03:00+0200", "29 23:00+0200"]),
        ("@daily", ["29 00:00+0100", "30 00:00+0200"]),
    ],
)
def test_a_time_that_does_not_exist_comes_at_the_first_moment_after(
    expression: str, expected: list[str]
) -> None:
    assert times(expression, SPRING, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 2 * * *", ["25 02:30+0200", "26 02:30+0100"]),
        ("0,30 2 * * *", ["25 02:00+0200", "25 02:30+0200", "26 02:00+0100"]),
        ("*/30 2 * * *", ["25 02:00+0200", "25 02:30+0200", "26 02:00+0100"]),
        ("0 */2 25 * *", ["25 00:00+0200", "25 02:00+0200", "25 04:00+0100"]),
        ("@weekly", ["25 00:00+0200", "01 00:00+0100"]),
    ],
)
def test_a_time_that_comes_twice_counts_once(
    expression: str, expected: list[str]
) -> None:
    assert times(expression, AUTUMN, len(expected)) == expected


def test_every_hour_follows_real_time() -> None:
    second = datetime(2026, 10, 25, 1, 45, tzinfo=BERLIN).timestamp()
    twice = ["25 02:30+0200", "25 02:30+0100", "25 03:30+0100"]
    assert times("30 * * * *", second, 3) == twice
    gap = datetime(2026, 3, 29, 1, 45, tzinfo=BERLIN).timestamp()
    assert times("30 * * * *", gap, 2) == ["29 03:30+0200", "29 04:30+0200"]


def test_in_the_hour_that_comes_again_an_earlier_time_of_its_first_half_is_past() -> (
    None
):
    again = datetime(2026, 10, 25, 2, 15, tzinfo=BERLIN, fold=1).timestamp()
    cron = CronTimes("30 2 * * *", "Europe/Berlin")
    latest = cron.latest_until(again)
    assert latest == datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN).timestamp()
    following = datetime(2026, 10, 26, 2, 30, tzinfo=BERLIN).timestamp()
    assert cron.next_after(again) == following


def test_days_of_month_and_week_are_alternatives_as_in_cron() -> None:
    friday_or_13th = times("0 9 13 * FRI", SPRING, 3)
    assert [time[:2] for time in friday_or_13th] == ["03", "10", "13"]


# --- any expression, near changes of clocks -------------------------------------------


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    pair = st.tuples(number, number).map(sorted)
    return st.one_of(
        st.just("*"),
        st.integers(1, high).map(lambda step: f"*/{step}"),
        number.map(str),
        pair.map(lambda two: f"{two[0]}-{two[1]}"),
        pair.map(lambda two: f"{two[0]},{two[1]}"),
    )


EXPRESSIONS = st.tuples(
    _field(0, 59),
    _field(0, 23),
    st.sampled_from(("*", "1,15", "L")),
    st.just("*"),
    _field(0, 7),
).map(" ".join)
ZONES = st.sampled_from(
    # By a whole hour, by half an hour, at midnight, never, and by a whole day.
    (
        ("Europe/Berlin", 1_774_746_000.0),
        ("Europe/Berlin", 1_792_890_000.0),
        ("Australia/Lord_Howe", 1_775_314_800.0),
        ("Africa/Cairo", 1_776_981_600.0),
        ("Asia/Kolkata", 1_775_314_800.0),
        ("Pacific/Apia", 1_325_239_200.0),
    )
)


@settings(max_examples=examples(300))
@given(EXPRESSIONS, ZONES, st.integers(-20_000, 20_000))
def test_each_moment_is_between_two_times(
    expression: str, place: tuple[str, float], offset: int
) -> None:
    zone, change_of_clocks = place
    cron = CronTimes(expression, zone)
    moment = change_of_clocks + offset
    latest = cron.latest_until(moment)
    following = cron.next_after(moment)
    assert latest is not None
    assert following is not None
    assert latest <= moment < following
    assert cron.next_after(latest) == following
    assert cron.next_after(latest - 1) == latest
    assert cron.latest_until(following) == following


# --- what is wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "fault", "remedy"),
    [
        ("60 * * * *", "its minute is '60'", "write 0 to 59, such as"),
        ("0 25 * * *", "its hour is '25'", "write 0 to 23, such as"),
        ("0 3 0 * *", "its day of the month is '0'", "write 1 to 31, such as"),
        ("0 3 * FOO *", "its month is 'FOO'", "write 1 to 12 or JAN to DEC"),
        ("0 3 * * MON-X", "its day of the week is 'MON-X'", "MON-FRI"),
        ("*/0 * * * *", "its minute is '*/0'", "*/15"),
        ("0 3 * *", "'0 3 * *' has 4 fields", "write five (minute, hour"),
        ("0 0 3 * * *", "has 6 fields", "'0 3 * * *' for three o'clock"),
        ("@reboot", "'@reboot' is no name of a time", "@daily"),
        ("0 3 31 2 *", "never comes", "'0 3 * * *'"),
    ],
)
def test_a_wrong_expression_names_the_field_and_what_is_right(
    expression: str, fault: str, remedy: str
) -> None:
    with pytest.raises(ValueError, match="; ") as raised:
        five_fields(expression)
    said, _, proposed = str(raised.value).rpartition("; ")
    assert fault in said
    assert remedy in proposed


@settings(max_examples=examples(300))
@given(st.text(max_size=40) | st.text("0123456789*/-,LW#@ MONJAN", max_size=40))
def test_any_text_is_an_expression_or_wrong_in_our_words(text: str) -> None:
    try:
        fields = five_fields(text)
    except ValueError as error:
        assert "; " in str(error)
    else:
        assert len(fields.split()) == 5


@pytest.mark.parametrize("name", NICKNAMES)
def test_names_stand_for_times(name: str) -> None:
    assert five_fields(name.upper()) == NICKNAMES[name]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("Mars/Olympus", "write one such as Europe/Berlin"),
        ("/etc/passwd", "write one such as Europe/Berlin"),
        ("../../etc/passwd", "write one such as Europe/Berlin"),
        ("", "write one such as Europe/Berlin"),
    ],
)
def test_an_unknown_time_zone_is_told(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match="there is no time zone") as raised:
        time_zone(name)
    assert str(raised.value).endswith(hint)
