"""How long moving a model takes: configured at first, then as measured."""

import pytest

from gpuyard.residency.fleet import Fleet, FleetGpu, FleetResident, Phase
from gpuyard.residency.policies import place_model
from gpuyard.residency.switching import KEPT, Switch, SwitchTimes

CONFIGURED = {
    ("m", Switch.BOOT): 120.0,
    ("m", Switch.WAKE): 6.0,
    ("m", Switch.UNLOAD): 5.0,
}


def test_what_was_measured_counts_more_than_what_is_configured():
    times = SwitchTimes(CONFIGURED)
    assert times.seconds("m", Switch.BOOT) == 120
    for seconds in (40.0, 60.0, 50.0):
        times.note("m", Switch.BOOT, seconds)
    assert times.seconds("m", Switch.BOOT) == 50
    assert times.seconds("m", Switch.BOOT, quantile=1.0) == 60
    assert times.seconds("m", Switch.BOOT, quantile=0.75) == pytest.approx(55)


def test_a_second_boot_counts_as_a_cold_one_until_it_was_measured():
    times = SwitchTimes(CONFIGURED)
    times.note("m", Switch.BOOT, 100.0)
    assert times.seconds("m", Switch.REBOOT) == 100
    times.note("m", Switch.REBOOT, 20.0)
    assert (times.seconds("m", Switch.REBOOT), times.seconds("m", Switch.BOOT)) == (
        20,
        100,
    )


def test_each_class_of_gpu_has_its_own_times():
    times = SwitchTimes(CONFIGURED)
    times.note("m", Switch.BOOT, 30.0, "h100")
    times.note("m", Switch.BOOT, 90.0, "t4")
    assert times.seconds("m", Switch.BOOT, "h100") == 30
    assert times.seconds("m", Switch.BOOT, "t4") == 90
    assert times.seconds("m", Switch.BOOT, "l4") == 60, (
        "of one that was never measured: by all"
    )


def test_only_the_newest_are_remembered_and_their_places_are_used_again():
    times = SwitchTimes(CONFIGURED)
    places = [times.note("m", Switch.BOOT, float(n)).slot for n in range(3 * KEPT)]
    assert set(places) == set(range(KEPT))
    assert times.seconds("m", Switch.BOOT, quantile=0.0) == 2 * KEPT
    with pytest.raises(KeyError):
        times.seconds("other", Switch.BOOT)


def test_a_model_goes_where_it_is_ready_soonest():
    times = SwitchTimes(CONFIGURED)
    times.note("m", Switch.REBOOT, 20.0)
    gpus = {
        name: FleetGpu(name, 24.0, node=name) for name in ("cold", "warm", "asleep")
    }
    fleet = Fleet(
        gpus, {"m": 20.0}, times, frozenset({"m"}), warm_nodes={"m": {"warm"}}
    )
    assert [gpu.id for gpu in place_model(fleet, "m")] == ["warm"]
    gpus["asleep"].residents["m"] = FleetResident(
        "m", gpus["asleep"], Phase.ASLEEP, 0.0
    )
    assert [gpu.id for gpu in place_model(fleet, "m")] == ["asleep"]
