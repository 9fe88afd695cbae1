"""Models, scripts and faults on a few GPUs, in any order: the policies never overbook,
never move what may not move, and let nobody wait for ever.
"""

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

    @rule(count=st.integers(1, 12), seconds=st.floats(0, 300))
    def scripts(self, count: int, seconds: float) -> None:
        self.pass_time(seconds)
        self.asked += count
        self.fleet.scripts.extend(
            WaitingTask(0, SCRIPT, self.now) for _ in range(count)
        )
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
        if gpu.worker:
            self.fleet.scripts.appendleft(WaitingTask(0, SCRIPT, self.now))
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
        self.now += seconds

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

    def movable(self) -> list[Any]:
        """What may end next."""
        ends: list[Any] = [
            lambda g=gpu: self.script_ends(g)
            for gpu in self.fleet.gpus.values()
            if gpu.worker
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
        gpu.worker = None
        self.served += 1
        self.fleet.last_script_ended_at = self.now
        self.fleet.scripts_ended = self.fleet.scripts_ended + 1
        self.fleet.scripts_run_s += 30.0

    def act(self) -> None:
        """Hand out requests, then let the policy act until it has no more wishes."""
        for _ in range(100):
            self.hand_out()
            action = self.actor.act(self.fleet, self.now)
            if action is None:
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
                assert fleet.has_room(fleet.gpus[gpu_id], SCRIPT)
                fleet.gpus[gpu_id].worker = fleet.scripts.popleft().name

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

    def teardown(self) -> None:
        """Nothing fails any more: everybody is served."""
        if not hasattr(self, "fleet"):
            return
        self.fleet.gpus |= self.lost
        until = self.now + EVERYBODY_S
        while self.unserved():
            assert self.now < until, (
                f"{self.unserved()} wait for ever: {self.fleet.gpus}"
            )
            self.now += 30.0
            for end in self.movable():
                end()
            self.act()

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
