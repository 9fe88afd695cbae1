"""How long attempts in external queues ran, whatever their clocks and ours say."""

from pathlib import Path

import pytest

from gpuyard.controller.observed_runs import ObservedRuns

HOURS_S = 7200.0


class Host:
    """A host with a boot clock; servers of its home follow one another."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self._folder = folder
        self.restart()

    def restart(self, live: tuple[str, ...] = ("a",)) -> None:
        self.runs = ObservedRuns(self._folder, lambda: self.now)
        self.runs.restore(live)

    def polls_while_it_runs(self, seconds: int) -> None:
        for _ in range(seconds):
            self.runs.runs("a", 0.0, self.now)
            self.now += 1


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("told_s", "ran_s"),
    [
        (9.5, 9.5),  # nobody has set a clock: the queue's times are exact
        (9.5 + HOURS_S, 12.0),  # since it was submitted
        (9.5 - HOURS_S, 8.0),  # from the first poll at which it ran to the last one
    ],
)
def test_the_times_of_the_queue_count_between_what_was_seen(
    host: Host, told_s: float, ran_s: float
) -> None:
    host.runs.submits("a")
    host.now += 3
    host.polls_while_it_runs(9)
    assert host.runs.ended("a", told_s, 0.0) == ran_s


def test_one_that_ran_between_two_polls_ran_no_longer(host: Host) -> None:
    host.runs.submits("a")
    asked_at = host.now = 2000.0
    host.runs.waits("a", asked_at)
    host.now += 2
    assert host.runs.ended("a", HOURS_S, 0.0) == 2.0
    assert host.runs.ended("a", -HOURS_S, 0.0) == 0.0


def test_one_that_ended_while_the_queue_told_of_others_ran_no_longer(
    host: Host,
) -> None:
    """A poll of many attempts lasts a while, and this one was asked about first."""
    host.runs.submits("a")
    host.runs.runs("a", 0.0, host.now)
    asked_at = host.now = host.now + 10
    host.now += 60
    host.runs.runs("a", 10.0, asked_at)
    assert host.runs.ended("a", 15.0, answer_age_s=0.0) == 15.0


def test_a_run_that_the_queue_has_ended_is_forgotten_by_the_next_server_too(
    host: Host,
) -> None:
    host.runs.submits("a")
    host.runs.runs("a", 0.0, host.now)
    host.now += 100
    host.runs.waits("a", host.now)
    host.now += 3600
    host.restart()
    assert host.runs.ran_s("a") is None
    assert host.runs.runs("a", 5.0, host.now) == 5.0
    host.now += 5
    assert host.runs.ended("a", 10.0, answer_age_s=0.0) == 10.0


def test_answers_that_may_be_old_prove_less(host: Host) -> None:
    """The last polls may have told of a past state: the job may have ended then."""
    host.runs.submits("a")
    host.polls_while_it_runs(70)
    assert host.runs.ended("a", 12.0, answer_age_s=60.0) == 12.0
    assert host.runs.ended("a", 5.0, answer_age_s=60.0) == 69.0


@pytest.mark.parametrize("told_s", [3.0 + HOURS_S, 3.0 - HOURS_S])
def test_a_clock_set_while_no_server_ran_changes_nothing(
    host: Host, told_s: float
) -> None:
    host.runs.submits("a")
    assert host.runs.runs("a", 0.0, host.now) == 0.0
    host.now += 100
    host.restart()
    assert host.runs.ran_s("a") == 100.0
    assert host.runs.runs("a", told_s, host.now) == 100.0
    assert host.runs.ended("a", told_s, 0.0) == 100.0


def test_a_repeated_submission_may_find_it_running(host: Host) -> None:
    host.runs.submits("a")
    host.now += 50
    host.runs.submits("a")
    host.now += 1
    assert host.runs.ended("a", 45.0, 0.0) == 45.0


def test_of_one_that_nobody_saw_the_times_of_the_queue_count(host: Host) -> None:
    assert host.runs.ended("a", HOURS_S, 0.0) == HOURS_S


def test_what_is_over_leaves_nothing_behind(host: Host, tmp_path: Path) -> None:
    host.runs.submits("a")
    host.runs.submits("b")
    host.runs.forget("a")
    assert [path.stem for path in tmp_path.iterdir()] == ["b"]
    host.restart(live=("a",))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", '{"boot_id": "another boot"}', "{}"])
def test_a_file_that_is_of_no_use_is_dropped(
    host: Host, tmp_path: Path, text: str
) -> None:
    (tmp_path / "a.json").write_text(text)
    host.restart()
    assert host.runs.ran_s("a") is None
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_keeps_no_server_from_starting(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "a.json").mkdir()
    host.restart()
    assert host.runs.ran_s("a") is None
