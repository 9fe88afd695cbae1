"""How long an attempt ran."""


def run_time_s(started_at: float | None, ended_at: float, ran_s: float | None) -> float:
    """Seconds from the start of an attempt to its end; 0 if it never started.

    `ran_s` is measured by a clock that nobody sets; None if nobody measured. Only then
    do the times count, which are UTC seconds of wall clocks.
    """
    if ran_s is not None:
        return ran_s
    if started_at is None:
        return 0.0
    return max(ended_at - started_at, 0.0)
