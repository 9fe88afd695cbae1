"""What of a shell's environment a job carries."""

from gpuyard.domain.carried_environment import carried_from, difference

SHELL = {
    "LR": "0.1",
    "CUDA_VISIBLE_DEVICES": "7",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "TERM": "xterm",
    "PWD": "/home/ann",
    "GPUYARD_HOME": "/tmp/home",
    "BASH_FUNC_module%%": "() { :; }",
    "HF_TOKEN": "hf_value",
    "COMPANY_PROXY": "http://proxy",
    "BROKEN": "\udcff",
}


def test_neither_session_nor_gpus_nor_keys_travel_and_keys_are_named() -> None:
    found = carried_from(SHELL, ("COMPANY_*",))
    assert found.variables == {"BASH_FUNC_module%%": "() { :; }", "LR": "0.1"}
    assert found.keys == ("HF_TOKEN",)


def test_a_difference_has_names_only() -> None:
    found = difference({"A": "1", "B": "1", "C": "1"}, {"B": "2", "C": "1", "D": "1"})
    assert (found.added, found.missing, found.changed) == (("A",), ("D",), ("B",))
