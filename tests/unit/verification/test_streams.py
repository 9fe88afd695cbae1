"""That honest solvers reach the hub, and wait for it."""

import json
import socket

import pytest

from gpuyard.config.verification import VerificationSettings
from gpuyard.domain.gpus import GPUClass
from gpuyard.verification import batch
from gpuyard.verification.executors import Executor, executor_named
from gpuyard.verification.solver import hub_connection
from gpuyard.verification.solver.hub_connection import HubConnection
from gpuyard.verification.solver.order import VERSION, SolverOrder, read_order
from gpuyard.verification.verify import unreachable_streams


def executors_of(settings: VerificationSettings) -> list[Executor]:
    known = settings.executors
    return [executor_named(name, known, GPUClass.T4) for name in known]


@pytest.mark.parametrize(
    ("network", "warned"),
    [
        ({}, ["far"]),
        ({"host": "0.0.0.0"}, ["far"]),  # nobody can connect to that
        ({"host": "0.0.0.0", "public_host": "lab.example.org"}, []),
        ({"host": "192.0.2.7"}, []),
    ],
)
def test_who_could_not_reach_us_is_named_before_it_fails(
    network: dict[str, str], warned: list[str]
) -> None:
    far = {"class": "t4", "provider": "slurm"}
    settings = VerificationSettings.model_validate(
        {
            "executors": {
                "near": {"class": "t4"},
                "far": far,
                "silent": {**far, "stream": False},
            },
            **network,
        }
    )
    told = unreachable_streams(settings, executors_of(settings))
    assert [words.split()[0] for words in told] == warned


def order() -> SolverOrder:
    stream = dict.fromkeys(("host", "port", "authority", "certificate", "key"), "")
    document = {
        "version": VERSION,
        "check": "chk_1",
        "task": "solve",
        "prompts": ["one?"],
        "seed": None,
        "settings": {},
        "engine": {"kind": "mock"},
        "stream": stream,
    }
    return read_order(json.dumps(document))


def test_a_solver_waits_while_the_hub_reads_the_files_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else many that send slowly would make who waits behind them fail."""
    here, hub = socket.socketpair()
    monkeypatch.setattr(hub_connection, "_connect", lambda stream: here)
    with here, hub:
        connection = HubConnection(order())
        hub.sendall(b'{"type": "seed", "seed": 7}\n')
        assert connection.seed() == 7
        patience_s = here.gettimeout()
        assert patience_s and patience_s >= 5 * batch.FILE_S
