"""Requests that give up and prompts that never do, urgent scripts and others, exclusive
batches and faults on a few GPUs, in any order: the policies never overbook, never move
what may not move, leave no GPU idle that would do for somebody who waits, and let
nobody wait for ever.
"""

import math
from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpuyard.residency.cost_policy import CostPolicy
from gpuyard.residency.fleet import (
    PHASE_MOVES,
    Demand,
    Fleet,
    FleetGpu,
    FleetResident,
    Phase,
    WaitingTask,
)
from gpuyard.residency.policies import (
    DrainResident,
    LoadModel,
    LruPolicy,
    RunScript,
    ThresholdPolicy,
    UnloadModel,
)
from gpuyard.residency.switching import Switch, SwitchTimes
from tests.support.examples import examples

MODELS = {"small": 8.0, "other": 8.0, "large": 20.0, "gang": 10.0}
GANGS = {"gang": 2}
SCRIPT = "script"
SLEEPER = "other"
BOOT_S = 60.0
WAKE_S = 5.0
UNLOAD_S = 5.0
PAUSE_S = 100.0
"""So long at most, a GPU is idle while a model is requested that has none. It is less
than a boot and the pauses between two looks.
"""
LONG_S = 3000.0
"""So long at least, a script runs on at the end after another has begun. That is longer
than any other waits for a GPU whose models nobody needs.
"""
EVERYBODY_S = 200_000.0
"""So long at most, in virtual time, until all have been served once nothing fails any
more.
"""


class Instance(RuleBasedStateMachine):
    """The fleet, and a policy that acts on it after each event."""

    policy: Any

    @initialize(
        count=st.integers(1, 4),
        pinned=st.booleans(),
        brains=st.integers(0, 2),
        prefer_idle=st.booleans(),
    )
    def open(self, count: int, pinned: bool, brains: int, prefer_idle: bool) -> None:
        self.brains = brains
        times = {
            (name, move): {Switch.BOOT: BOOT_S, Switch.WAKE: WAKE_S}.get(move, UNLOAD_S)
            for name in (*MODELS, SCRIPT)
            for move in Switch
        }
        gpus = {f"g{n}": self.gpu(n) for n in range(count)}
        self.now = 0.0
        self.served = 0
        self.asked = 0
        self.fleet = Fleet(
            gpus,
            {**MODELS, SCRIPT: 0.0},
            SwitchTimes(times),
            frozenset({SLEEPER}),
            exclusive_scripts=True,
            pinned_gpus=frozenset({"g0"}) if pinned and count > 1 else frozenset(),
            brain_models=frozenset({"large"}),
            prefer_idle=prefer_idle,
            demand={model: Demand() for model in MODELS},
            gang_sizes=GANGS,
        )
        for number, pair in enumerate(((0, 1), (2, 3))):
            if count > pair[1] and not (number == 0 and self.fleet.pinned_gpus):
                break
        else:  # there is no room for two
            del self.fleet.demand["gang"]
        self.waiting: list[FleetResident] = []
        self.lost: dict[str, FleetGpu] = {}
        # The models that each GPU of the batch had, and the scripts that do its items.
        self.batch: dict[str, list[str]] = {}
        self.items: set[str] = set()
        # Since when a GPU is idle and a model without a place is requested.
        self.idle_since: dict[tuple[str, str], float] = {}
        self.actor = self.policy()

    def gpu(self, number: int) -> FleetGpu:
        rank = max(self.brains - number, 0)
        return FleetGpu(f"g{number}", 24.0, node=f"n{number // 2}", brain_rank=rank)

    # --- events ---

    @rule(model=st.sampled_from(sorted(MODELS)), seconds=st.floats(0, 300))
    def request(self, model: str, seconds: float) -> None:
        self.pass_time(seconds)
        if model not in self.fleet.demand:
            return
        self.asked += 1
        self.fleet.demand[model].add(WaitingTask(self.asked, model, self.now), 5000)
        self.act()

    @rule(count=st.integers(1, 12), seconds=st.floats(0, 300), urgent=st.booleans())
    def scripts(self, count: int, seconds: float, urgent: bool) -> None:
        """Urgent ones come before all that wait."""
        self.pass_time(seconds)
        self.asked += count
        self.add_scripts(SCRIPT, count, urgent)
        self.act()

    @precondition(lambda self: any(d.waiting for d in self.fleet.demand.values()))
    @rule(choice=st.integers(0, 100))
    def somebody_gives_up(self, choice: int) -> None:
        """A request whose client has left. A prompt that is a job never does."""
        lines = [
            demand.waiting for demand in self.fleet.demand.values() if demand.waiting
        ]
        line = lines[choice % len(lines)]
        del line[choice % len(line)]
        self.act()

    @rule(
        gpus=st.sets(st.integers(0, 3), min_size=1),
        count=st.integers(1, 3),
        urgent=st.booleans(),
    )
    def scripts_for_some_gpus(self, gpus: set[int], count: int, urgent: bool) -> None:
        """Scripts that only these GPUs suit."""
        suitable = frozenset(f"g{n}" for n in gpus if f"g{n}" in self.fleet.gpus)
        if not suitable - self.fleet.pinned_gpus:
            return
        name = f"{SCRIPT} for {sorted(suitable)}"
        self.add_kind(name, suitable)
        self.add_scripts(name, count, urgent)
        self.act()

    @precondition(lambda self: not self.batch)
    @rule()
    def an_exclusive_batch_comes(self) -> None:
        """It gets all GPUs that are not pinned, one item on each."""
        fleet = self.fleet
        for gpu in fleet.gpus.values():
            if gpu.id in fleet.pinned_gpus:
                continue
            whole = [r for r in fleet.holders(gpu) if r.serves]
            mine = [r.model for r in whole if not r.other_gpus]
            self.batch[gpu.id] = mine
            name = f"item {gpu.id}"
            self.items.add(name)
            self.add_kind(name, frozenset({gpu.id}))
            fleet.scripts.append(WaitingTask(0, name, self.now))
        fleet.closed_for_batch = bool(self.batch)
        self.act()

    @precondition(lambda self: self.movable())
    @rule(choice=st.integers(0, 100), seconds=st.floats(0, 300))
    def something_ends(self, choice: int, seconds: float) -> None:
        """A boot, a request, an unloading or a script is over, in whatever order."""
        self.pass_time(seconds)
        there = self.movable()
        there[choice % len(there)]()
        self.act()

    @precondition(lambda self: any(gpu.residents for gpu in self.fleet.gpus.values()))
    @rule(choice=st.integers(0, 100))
    def a_server_crashes(self, choice: int) -> None:
        there = list(self.fleet.residents())
        gone = there[choice % len(there)]
        self.is_gone(gone)
        self.act()

    @precondition(lambda self: len(self.fleet.gpus) > 1)
    @rule(choice=st.integers(0, 100))
    def a_gpu_is_lost(self, choice: int) -> None:
        """What was on it is gone; the script runs again."""
        gpu = self.fleet.gpus.pop(
            sorted(self.fleet.gpus)[choice % len(self.fleet.gpus)]
        )
        for resident in list(gpu.residents.values()):
            self.is_gone(resident)
        if gpu.worker and gpu.worker not in self.items:
            self.fleet.scripts.appendleft(WaitingTask(0, gpu.worker, self.now))
        self.forget_items(gpu.id)
        self.lost[gpu.id] = self.gpu(int(gpu.id[1:]))
        self.act()

    @precondition(lambda self: self.lost)
    @rule()
    def a_gpu_comes_back(self) -> None:
        _, gpu = self.lost.popitem()
        self.fleet.gpus[gpu.id] = gpu
        self.act()

    @rule(seconds=st.floats(0, 3000))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)
        self.act()

    # --- how it goes on ---

    def pass_time(self, seconds: float) -> None:
        """The policy is asked again when it wants to be, and only then."""
        until = self.now + seconds
        while self.actor.wake_at <= until:
            self.now = max(self.now, self.actor.wake_at)
            self.act()
            if self.actor.wake_at <= self.now:
                raise AssertionError("the policy wants to be asked again at once")
        self.now = until

    def add_scripts(self, name: str, count: int, urgent: bool) -> None:
        tasks = [WaitingTask(0, name, self.now) for _ in range(count)]
        if urgent:
            self.fleet.scripts.extendleft(tasks)
        else:
            self.fleet.scripts.extend(tasks)

    def add_kind(self, name: str, suitable: frozenset[str]) -> None:
        self.fleet.memory_gb = {**self.fleet.memory_gb, name: 0.0}
        self.fleet.allowed_gpus = {**self.fleet.allowed_gpus, name: suitable}

    def forget_items(self, gpu: str) -> None:
        """The GPU is no longer one of the batch."""
        self.batch.pop(gpu, None)
        name = f"item {gpu}"
        if name in self.items:
            left = [task for task in self.fleet.scripts if task.name != name]
            self.fleet.scripts = deque(left)
            self.items.discard(name)

    def advance_batch(self) -> None:
        """What is in the way of the batch leaves; what it needs no more gets its models
        back, one at a time.
        """
        fleet = self.fleet
        for gpu_id in list(self.batch):
            gpu = fleet.gpus[gpu_id]
            if f"item {gpu_id}" in self.items:
                if gpu.worker is None:
                    self.clear(gpu)
                continue
            models = self.batch[gpu_id]
            models[:] = [m for m in models if gpu.resident(m) not in fleet.ready()]
            is_booting = any(r.phase is Phase.BOOTING for r in fleet.residents())
            if not models:
                del self.batch[gpu_id]
            elif gpu.worker:
                del self.batch[gpu_id]  # another job has it
            elif not is_booting and fleet.has_room(gpu, models[0]):
                fleet.start_loading(models[0], (gpu_id,), self.now)
        if not self.items and not self.batch:
            fleet.closed_for_batch = False

    def clear(self, gpu: FleetGpu) -> None:
        for resident in self.fleet.holders(gpu):
            if resident in self.waiting:
                self.waiting.remove(resident)
                self.fleet.remove(resident)
            elif resident.phase in (Phase.READY, Phase.BOOTING):
                self.enter(resident, Phase.UNLOADING)
            elif resident.phase is Phase.BUSY:
                resident.draining = True

    def is_gone(self, resident: FleetResident) -> None:
        """Its request is asked anew."""
        self.fleet.remove(resident)
        if resident.phase is Phase.BUSY:
            self.fleet.demand[resident.model].waiting.appendleft(
                WaitingTask(0, resident.model, self.now)
            )

    def enter(self, resident: FleetResident, phase: Phase) -> None:
        assert phase in PHASE_MOVES[resident.phase], (
            f"{resident.model}: {resident.phase} to {phase}"
        )
        resident.phase = phase
        resident.since = self.now

    def movable(self, but: FleetGpu | None = None) -> list[Any]:
        """What may end next, but the script on one GPU."""
        ends: list[Any] = [
            lambda g=gpu: self.script_ends(g)
            for gpu in self.fleet.gpus.values()
            if gpu.worker and gpu is not but
        ]
        for resident in self.fleet.residents():
            if resident.phase is Phase.BUSY or (
                resident.phase is Phase.BOOTING and self.has_begun(resident)
            ):
                ends.append(lambda r=resident: self.becomes_ready(r))
            elif resident.phase is Phase.UNLOADING:
                ends.append(lambda r=resident: self.has_left(r))
        return ends

    def has_begun(self, resident: FleetResident) -> bool:
        """Whether its GPUs are its own by now: then it boots."""
        if resident in self.waiting and not any(
            gpu.worker or [r for r in self.fleet.holders(gpu) if r is not resident]
            for gpu in resident.gpus
        ):
            self.waiting.remove(resident)
        return resident not in self.waiting

    def becomes_ready(self, resident: FleetResident) -> None:
        if resident.phase is Phase.BUSY:
            self.served += 1
            self.fleet.demand[resident.model].note_answer(10.0)
        self.enter(resident, Phase.READY)
        resident.used_at = self.now

    def has_left(self, resident: FleetResident) -> None:
        if resident.model in self.fleet.can_sleep:
            self.enter(resident, Phase.ASLEEP)
            resident.draining = False
        else:
            self.fleet.remove(resident)

    def script_ends(self, gpu: FleetGpu) -> None:
        self.items.discard(gpu.worker or "")
        gpu.worker = None
        self.served += 1
        self.fleet.last_script_ended_at = self.now
        self.fleet.scripts_ended = self.fleet.scripts_ended + 1
        self.fleet.scripts_run_s += 30.0

    def act(self) -> None:
        """Hand out requests, then let the policy act until it has no more wishes."""
        for _ in range(100):
            self.advance_batch()
            self.hand_out()
            action = self.actor.act(self.fleet, self.now)
            if action is None:
                self.nothing_idles_that_somebody_needs()
                return
            self.do(action)
        raise AssertionError("the policy has no end of wishes")

    def hand_out(self) -> None:
        for resident in self.fleet.residents():
            waiting = self.fleet.demand[resident.model].waiting
            if resident.phase is Phase.READY and not resident.draining and waiting:
                waiting.popleft()
                self.enter(resident, Phase.BUSY)

    def do(self, action: Any) -> None:
        fleet = self.fleet
        match action:
            case LoadModel(model, gpus):
                assert len(gpus) == GANGS.get(model, 1)
                assert len({fleet.gpus[gpu].node for gpu in gpus}) == 1
                if there := fleet.gpus[gpus[0]].resident(model):
                    assert Phase.BOOTING in PHASE_MOVES[there.phase]
                room = all(fleet.has_room(fleet.gpus[gpu], model) for gpu in gpus)
                assert room or model in GANGS
                there = fleet.start_loading(model, gpus, self.now)
                if not room:
                    self.waiting.append(there)
            case UnloadModel(model, gpu_id):
                there = fleet.gpus[gpu_id].residents[model]
                assert gpu_id not in fleet.pinned_gpus
                assert there.phase is Phase.READY
                self.enter(there, Phase.UNLOADING)
            case DrainResident(model, gpu_id):
                there = fleet.gpus[gpu_id].residents[model]
                assert gpu_id not in fleet.pinned_gpus
                there.draining = True
            case RunScript(gpu_id):
                fleet.gpus[gpu_id].worker = fleet.take_script(gpu_id).name

    # --- promises ---

    @invariant()
    def nothing_is_overbooked(self) -> None:
        for gpu in self.fleet.gpus.values() if hasattr(self, "fleet") else ():
            held = [
                r
                for r in gpu.residents.values()
                if r.holds_memory and self.has_begun(r)
            ]
            assert len(held) == 1 or not any(
                resident.other_gpus for resident in held
            ), "a gang has its GPUs to itself"
            assert sum(MODELS[resident.model] for resident in held) <= gpu.memory_gb
            assert not (gpu.worker and held), "a script has its GPU to itself"

    def nothing_idles_that_somebody_needs(self) -> None:
        """An idle GPU that suits a script runs it; one that suits a model without a
        place gets it after a pause.
        """
        fleet = self.fleet
        idle = [
            gpu
            for gpu in fleet.gpus.values()
            if not gpu.worker and not fleet.holders(gpu)
        ]
        for gpu in idle:
            for task in fleet.scripts:
                assert not fleet.may_use(gpu, task.name), (
                    f"{task.name} waits, and {gpu.id} is idle"
                )
        wanted = {
            (gpu.id, model)
            for model, demand in fleet.demand.items()
            if demand.waiting
            and not fleet.serving(model)
            and not fleet.closed_for_batch
            for gpu in idle
            if model not in GANGS and fleet.has_room(gpu, model)
        }
        self.idle_since = {
            key: self.idle_since.get(key, self.now) for key in sorted(wanted)
        }
        for (gpu_id, model), since in self.idle_since.items():
            assert self.now - since <= PAUSE_S, f"{model} waits, and {gpu_id} is idle"

    def teardown(self) -> None:
        """Nothing fails any more: everybody is served. Time goes on only where
        something ends, or the policy wants to be asked again.
        """
        if not hasattr(self, "fleet"):
            return
        self.fleet.gpus |= self.lost
        self.act()
        self.one_script_runs_very_long()
        until = self.now + EVERYBODY_S
        while self.unserved():
            assert self.now < until, (
                f"{self.unserved()} wait for ever: {self.fleet.gpus}"
            )
            ends = self.movable()
            if ends:
                self.pass_time(30.0)
            else:
                assert self.actor.wake_at < math.inf, (
                    f"nothing wakes the policy, and {self.unserved()} wait:"
                    f" {self.fleet.gpus}"
                )
                self.now = max(self.now, self.actor.wake_at)
            for end in ends:
                end()
            self.act()

    def one_script_runs_very_long(self) -> None:
        """Meanwhile the GPUs of models that nobody needs are for other scripts."""
        fleet = self.fleet
        long = next((gpu for gpu in fleet.gpus.values() if gpu.worker), None)
        if long is None or self.batch:
            return
        others = [
            gpu.id
            for gpu in fleet.gpus.values()
            if gpu is not long and gpu.id not in fleet.pinned_gpus
        ]
        until = self.now + LONG_S
        waiting = len(fleet.scripts)
        while self.now < until and fleet.scripts:
            if len(fleet.scripts) < waiting:
                until = self.now + LONG_S
            waiting = len(fleet.scripts)
            ends = self.movable(but=long)
            if ends:
                self.pass_time(30.0)
            elif self.actor.wake_at == math.inf:
                break
            else:
                self.now = max(self.now, self.actor.wake_at)
            for end in ends:
                end()
            self.act()
        # A gang keeps its GPUs if it waits for that of the long script, or is pinned.
        staying = [
            resident
            for resident in fleet.residents()
            if resident in self.waiting
            or any(gpu.id in fleet.pinned_gpus for gpu in resident.gpus)
        ]
        kept = {gpu.id for resident in staying for gpu in resident.gpus}
        left = [
            task.name
            for task in fleet.scripts
            if any(
                fleet.may_use(fleet.gpus[gpu], task.name)
                for gpu in others
                if gpu not in kept
            )
        ]
        assert not left, f"{left} wait for the long script on {long.id}: {fleet.gpus}"

    def unserved(self) -> int:
        return len(self.fleet.scripts) + sum(
            len(demand.waiting) for demand in self.fleet.demand.values()
        )


@pytest.mark.parametrize("policy", [CostPolicy, ThresholdPolicy, LruPolicy])
def test_gpus_under_any_policy_with_faults(policy: type[Any]) -> None:
    machine = type(f"Instance{policy.__name__}", (Instance,), {"policy": policy})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(60), stateful_step_count=40, deadline=None
        ),
    )
