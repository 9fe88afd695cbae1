"""Models and scripts on the same GPUs, in virtual time."""

import math
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.residency import simulation as module
from gpuyard.residency.fleet import Fleet, Phase
from gpuyard.residency.policies import (
    Action,
    DrainResident,
    LoadModel,
    ResidencyPolicy,
    RunScript,
    UnloadModel,
)
from gpuyard.residency.simulation import POLICIES, play
from gpuyard.residency.workload import Arrival, BatchArrival, Model, Script, Workload
from tests.support.examples import examples

SLOW = Model(boot_s=120, wake_s=None, unload_s=5, memory_gb=20)
QUICK = Model(boot_s=120, wake_s=6, unload_s=5, memory_gb=20)
SCRIPT = Script(boot_s=5, exit_s=1, memory_gb=8)


def gpus(count: int, memory_gb: float = 24) -> dict[str, float]:
    return {f"GPU-{number}": memory_gb for number in range(count)}


def on(
    count: int, *arrivals: tuple[float, str, float], model: Model = SLOW, **more
) -> Workload:
    """Model `m` and script `s` on so many GPUs; arrivals as (when, which, seconds)."""
    came = [Arrival(*arrival) for arrival in arrivals]
    return Workload(gpus(count), {"m": model}, {"s": SCRIPT}, came, **more)


def batch(items: tuple[float, ...], model: Model = SLOW, **more) -> Workload:
    """The seed document's batch: three GPUs, each with a model, which are loaded one at
    a time.
    """
    initial = dict.fromkeys(gpus(3), "m")
    arrivals = [BatchArrival(0, "s", items, exclusive=True, reload=True)]
    return on(
        3, model=model, batches=arrivals, initial=initial, serial_loads=True, **more
    )


# --- single steps ---


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_waits_for_the_boot_and_a_second_does_not(policy):
    outcome = play(on(2, (0, "m", 10), (200, "m", 10)), policy)
    assert outcome.llm == [130, 10]
    assert outcome.loads == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_script_pays_for_its_worker_each_time(policy):
    outcome = play(on(2, (0, "s", 10), (20, "s", 10)), policy)
    assert outcome.script == [15, 15]
    assert outcome.switching_s == 12


@pytest.mark.parametrize("policy", ["cost", "threshold", "lru"])
def test_a_short_line_of_scripts_does_not_wait_for_ever(policy):
    """One GPU, a model on it with nothing to do: ten boots at the longest."""
    outcome = play(on(1, (0, "s", 10), initial={"GPU-0": "m"}), policy)
    assert outcome.unfinished == 0
    assert outcome.script[0] <= 1200 + 5 + 5 + 10


def test_a_script_gets_the_place_of_a_model_that_is_never_idle():
    requests = [(20.0 * n, "m", 19.0) for n in range(400)]
    outcome = play(on(1, (100, "s", 10), *requests, initial={"GPU-0": "m"}), "cost")
    assert outcome.unfinished == 0
    assert outcome.script[0] <= 1200 + 5 + 5 + 10 + 2 * 19


def test_a_model_gets_the_place_of_another_that_is_never_idle():
    requests = [Arrival(20.0 * n, "m", 19.0) for n in range(400)]
    work = Workload(
        gpus(1),
        {"m": SLOW, "other": SLOW},
        {},
        [*requests, Arrival(100, "other", 1)],
        initial={"GPU-0": "m"},
    )
    outcome = play(work, "cost")
    assert outcome.unfinished == 0


def test_a_model_that_sleeps_is_back_after_its_wake():
    """Its first boot takes 120 s, its second coming 6 s, and only the first counts as a
    load.
    """
    requests = [(0, "m", 10), (4000, "m", 10)]
    outcome = play(on(1, *requests, (500, "s", 30), model=QUICK), "lru")
    assert outcome.loads == 1
    assert outcome.llm == [130, 16]


# --- batches ---


def test_the_seed_documents_batch_is_as_quick_as_can_be():
    assert play(batch((45.0,) * 125), "cost").batches == [2141]
    assert play(batch((45.0,) * 125), "round_robin").batches == [2216]


def test_with_models_that_wake_there_is_nothing_to_wait_for():
    assert play(batch((45.0,) * 125, QUICK), "cost").batches == [1907]


@pytest.mark.parametrize("seed", range(8))
def test_unequal_items_come_close_to_the_bound(seed):
    dice = Random(seed)
    items = tuple(dice.lognormvariate(math.log(36), 0.7) for _ in range(125))
    bound = max(11 + (math.fsum(items) + 720) / 3, max(items) + 131)
    (makespan,) = play(batch(items), "cost").batches
    assert bound - 1e-6 <= makespan <= 1.03 * bound


def test_requests_wait_while_a_batch_has_all_gpus_and_are_answered_after_it():
    work = batch((45.0,) * 6)
    outcome = play(
        Workload(**{**_fields(work), "arrivals": [Arrival(1, "m", 2)]}), "cost"
    )
    assert outcome.unfinished == 0
    assert len(outcome.script) == 6
    assert outcome.llm[0] > 100


def test_a_batch_waits_for_the_answer_under_way():
    later = BatchArrival(10, "s", (45.0,) * 30, exclusive=True, reload=True)
    work = Workload(**{**_fields(batch(())), "batches": [later]})
    (alone,) = play(work, "cost").batches
    (beside,) = play(
        Workload(**{**_fields(work), "arrivals": [Arrival(0, "m", 60)] * 3}), "cost"
    ).batches
    assert beside == alone + 50


def test_a_small_batch_does_not_take_all_gpus():
    """Three items on one GPU cost one reload; on three they would cost three, one after
    the other.
    """
    outcome = play(batch((45.0,) * 3), "cost")
    assert outcome.batches == [5 + 5 + 3 * 45 + 1 + 120]
    assert outcome.loads == 1


def _fields(work: Workload) -> dict[str, object]:
    return {name: getattr(work, name) for name in Workload.__slots__}


def test_a_batch_on_gpus_without_models_ends_with_its_last_worker():
    arrival = BatchArrival(0, "s", (20.0, 30.0, 5.0), exclusive=True, reload=True)
    outcome = play(on(2, batches=[arrival]), "cost")
    assert outcome.batches == [5 + 30 + 1]
    assert outcome.unfinished == 0


# --- what holds for every policy ---


@dataclass
class Watched:
    """A policy, and after each step what must hold of the fleet."""

    inner: ResidencyPolicy

    @property
    def wake_at(self) -> float:
        return self.inner.wake_at

    def act(self, fleet: Fleet, now: float) -> Action | None:
        for gpu in fleet.gpus.values():
            assert fleet.free_gb(gpu) >= 0, f"{gpu.id} holds more than it has"
        action = self.inner.act(fleet, now)
        match action:
            case LoadModel(model, (gpu,)):
                there = fleet.gpus[gpu].resident(model)
                assert there is None or there.phase is Phase.ASLEEP
                assert fleet.has_room(fleet.gpus[gpu], model)
                assert not fleet.closed_for_batch
            case UnloadModel(model, gpu):
                assert fleet.gpus[gpu].residents[model].phase is Phase.READY
            case DrainResident(model, gpu):
                assert fleet.gpus[gpu].residents[model].phase is Phase.BUSY
            case RunScript(gpu):
                assert any(
                    fleet.has_room(fleet.gpus[gpu], task.name) for task in fleet.scripts
                )
            case None:
                pass
        return action


names = st.sampled_from(["m", "small", "s", "t"])
arrivals = st.lists(st.tuples(st.floats(0, 3000), names, st.floats(0, 90)), max_size=60)


@given(
    arrivals,
    st.integers(1, 4),
    st.sampled_from(sorted(POLICIES)),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
def test_whatever_comes_fits_and_is_done(came, count, policy, sleeps, with_batch):
    model = QUICK if sleeps else SLOW
    small = Model(boot_s=30, wake_s=2 if sleeps else None, unload_s=1, memory_gb=10)
    batches = (
        [BatchArrival(500, "s", (20.0, 30.0, 5.0), exclusive=True, reload=True)]
        if with_batch
        else []
    )
    work = Workload(
        gpus(count),
        {"m": model, "small": small},
        {"s": SCRIPT, "t": SCRIPT},
        [Arrival(*each) for each in came],
        batches,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            module.POLICIES, policy, lambda made=POLICIES[policy]: Watched(made())
        )  # type: ignore[arg-type]
        outcome = play(work, policy)
    asked = len([name for _, name, _ in came if name in ("m", "small")])
    assert len(outcome.batches) == len(batches)
    if policy == "cost":
        assert outcome.unfinished == 0
        assert len(outcome.llm) == asked
        assert len(outcome.script) == len(came) - asked + 3 * len(batches)


def test_cost_beats_the_rules_where_models_boot_for_minutes():
    """Four GPUs, requests in bursts, scripts in heaps; the targets are for
    `benchmarks.policies` to show.
    """
    work = mixed(seed=3, hours=3)
    rules = play(work, "threshold")
    cost = play(work, "cost")
    assert cost.unfinished == rules.unfinished == 0
    assert cost.loads < rules.loads / 2
    assert math.fsum(cost.script) < math.fsum(rules.script)


def mixed(seed: int, hours: float) -> Workload:
    """Requests that come at 0.2 a second or hardly at all, and scripts that come singly
    and in heaps.
    """
    dice = Random(seed)
    came = list[tuple[float, str, float]]()
    end = hours * 3600
    at = 0.0
    busy = True
    while at < end:
        until = at + dice.expovariate(1 / 1100)
        now = at
        while (now := now + dice.expovariate(0.2 if busy else 0.005)) < min(until, end):
            came.append((now, "m", min(90.0, dice.lognormvariate(2.24, 0.82))))
        at = until
        busy = not busy
    for rate, most in ((0.008, 1), (1 / 1900, 110)):
        at = 0.0
        while (at := at + dice.expovariate(rate)) < end:
            came += [
                (at, "s", dice.lognormvariate(3.53, 0.71))
                for _ in range(dice.randint((most + 1) // 2, most))
            ]
    return on(4, *sorted(came))
