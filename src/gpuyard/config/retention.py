"""The settings of retention: what is kept how long."""

from pydantic import Field

from gpuyard.config.sections import DAY_S, Days, SettingsSection


class RetentionSettings(SettingsSection):
    """How long history is kept (see the guide on history); 0: without an end.

    A job goes with everything that belongs to it `jobs_days` after its end, and earlier
    if there are more than `jobs` jobs. It stays while its idempotency key may come
    again (`keys_days`). Its output goes after `logs_days`, its series after
    `series_days`, what it used after `usage_days`. Events go after `events_days`, and
    earlier if the journal has more than `ledger.keep_events`.
    """

    jobs_days: Days = 365.0
    jobs: int = Field(default=1_000_000, ge=0)
    keys_days: Days = 7.0
    logs_days: Days = 90.0
    series_days: Days = 90.0
    usage_days: Days = 30.0
    events_days: Days = 90.0


def before(days: float, now: float) -> float | None:
    """The time that was so many days ago; None if there is no limit."""
    return now - days * DAY_S if days else None
