from gpuyard.domain.statistics import percentile
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.simulate import TraceJob, simulate


def times(
    order: QueueOrder, *jobs: tuple[float, int, float], gpus: int = 4
) -> list[float]:
    trace = [
        TraceJob(str(number), at, width, seconds, "t")
        for number, (at, width, seconds) in enumerate(jobs)
    ]
    return sorted(simulate(trace, gpus, Policy(order=order)).times)


def test_fcfs_lets_nobody_pass():
    assert times(QueueOrder.FCFS, (0, 3, 100), (1, 4, 10), (2, 1, 5)) == [100, 109, 113]


def test_a_job_that_asks_for_too_much_is_unfinished():
    result = simulate(
        [TraceJob("a", 0, 5, 10, "t"), TraceJob("b", 1, 1, 10, "t")],
        4,
        Policy(order=QueueOrder.GITTINS),
    )
    assert (len(result.times), result.unfinished) == (1, 1)


def test_what_is_known_to_be_short_takes_the_place_of_what_is_known_to_be_long():
    """Fifty jobs of each type teach the difference; then a long one gives way, once,
    and pays for it.
    """
    long = [TraceJob(f"l{n}", n * 10_000.0, 1, 9_000.0, "long") for n in range(50)]
    short = [
        TraceJob(f"s{n}", n * 10_000.0 + 9_500.0, 1, 60.0, "short") for n in range(50)
    ]
    last = [
        TraceJob("hog", 600_000.0, 4, 9_000.0, "long"),
        TraceJob("quick", 602_000.0, 4, 60.0, "short"),
    ]
    result = simulate([*long, *short, *last], 4, Policy(order=QueueOrder.GITTINS))
    assert result.preemptions == 1
    assert result.unfinished == 0
    assert max(result.times) == 9_000.0 + 60.0 + 60.0, (
        "its own time, the other's, and what the preemption costs"
    )


def test_percentiles_are_values_that_occurred():
    assert [percentile([1.0, 2.0, 3.0, 4.0], p) for p in (50, 95, 99)] == [
        2.0,
        4.0,
        4.0,
    ]
    assert percentile([], 50) == 0.0
