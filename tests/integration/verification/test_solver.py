"""The solver as a real process, its messages on standard output."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuyard.verification.answers import IncomingFile, read_series
from gpuyard.verification.protocol import (
    WORD,
    Claims,
    Declined,
    Failed,
    Hash,
    Ready,
    SeriesPiece,
    SolverTask,
)
from gpuyard.verification.solver.probe import nonce_of
from tests.integration.verification.solvers import (
    PROMPTS,
    SOLVER,
    answers_in,
    messages_in,
    order,
    run,
    solved,
)
from tests.support.components import require
from tests.support.nvml import LIBRARY, FakeGpus
from tests.support.nvml.fixtures import fake_gpus, nvml_library
from tests.support.programs import run_program

__all__ = ["fake_gpus", "nvml_library"]


def test_the_mock_answers_by_seed_prompt_and_settings_only() -> None:
    one = solved(order())
    assert set(one) == set(PROMPTS)
    assert len(set(one.values())) == len(PROMPTS)
    assert solved(order()) == one
    assert solved(order(prompts=PROMPTS[::-1], check="chk_2")) == one
    fewer = solved(order(prompts=PROMPTS[2:4]))
    assert fewer == {prompt: one[prompt] for prompt in PROMPTS[2:4]}
    assert not set(solved(order(seed=8)).values()) & set(one.values())
    assert solved(order(settings={"temperature": 0.6})) != one
    assert (
        solved(
            order(engine={"kind": "mock", "delay_s": 0.01, "delay_per_prompt_s": 0.001})
        )
        == one
    )


def test_a_copy_of_the_folder_is_all_it_needs(tmp_path: Path) -> None:
    """Under another name, without our package, beside a module that has the name of one
    of its own.
    """
    copy = tmp_path / "some-folder"
    shutil.copytree(SOLVER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "json.py").write_text(
        "raise AssertionError('a file beside the solver is no module of Python')"
    )
    alone = [sys.executable, "-E", "-S", str(copy / "solve.py")]
    done = run_program(alone, input=json.dumps(order()), timeout=60)
    assert answers_in(done.stdout) == solved(order())


def old_pythons() -> list[Path]:
    """Interpreters of 3.9, the oldest that solvers need."""
    found = [path for name in ("python3.9",) if (path := shutil.which(name))]
    found += [str(path) for path in Path.home().glob(".pyenv/versions/3.9*/bin/python")]
    works = [
        path
        for path in found
        if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0
    ]
    return [Path(path) for path in works]


def test_it_runs_on_python_3_9() -> None:
    pythons = old_pythons()
    require("python3.9", bool(pythons))
    assert solved(order(), python=pythons[0]) == solved(order())
    wanted = order(task="generate", generate={"series": 1, "prompts": 5, "seed": 1})
    assert run(wanted, python=pythons[0])[0] == 0


def test_the_messages_come_in_order_each_on_a_short_line_of_its_own() -> None:
    prompts = [f"Prompt {number} {'é' * 50}" for number in range(200)]
    wanted = order(prompts=prompts, claims={"nonce": "ab", "inventory": True})
    code, output, errors = run(
        wanted, environment={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    )
    assert (code, errors) == (0, "")
    assert [message.type for message in messages_in(output)][:4] == [
        "ready",
        "hash",
        "claims",
        "answers",
    ]
    assert len(messages_in(output)) > 4
    assert all(len(line.encode()) < 4096 for line in output.splitlines())


def test_what_an_engine_prints_does_not_mix_with_the_messages(tmp_path: Path) -> None:
    """A library that prints to standard output from Python and from below it, without
    ending its line.
    """
    copy = tmp_path / "solver"
    shutil.copytree(SOLVER, copy)
    mock = copy / "engines/mock.py"
    chatty = 'import os; os.write(1, b"loading 99 %"); print("> {}", flush=True)\n'
    mock.write_text(mock.read_text() + chatty)
    code, output, errors = run(order(), solver=copy)
    assert code == 0
    assert "loading 99 %" in errors
    assert "> {}" in errors
    assert answers_in(output) == solved(order())
    merged = run_program(
        [sys.executable, "solve.py"],
        cwd=copy,
        input=json.dumps(order()),
        timeout=60,
        stderr=subprocess.STDOUT,
    ).stdout
    assert answers_in(merged.replace(f"{WORD}{{}}", "")) == solved(order())


WRONG: dict[str, tuple[Any, str]] = {
    "empty": ("", "the order is no JSON document"),
    "list": ("[]", "must be a JSON object"),
    "version": (
        order(version=3),
        (
            "version: this solver reads 4, the order has 3; take the solver that comes"
            " with the"
        ),
    ),
    "task": (order(task="steal"), "task: 'steal' is none of solve, generate, probe"),
    "no-prompts": (order(prompts=[]), "prompts: must be a list of texts"),
    "a-prompt-no-text": (order(prompts=["a", 1]), "prompts: must be a list of texts"),
    "prompt-twice": (order(prompts=["a", "a"]), "prompts: one comes twice"),
    "no-seed": (order(seed=None), "seed: must be given"),
    "seed-text": (order(seed="7"), "seed: must be of type int, not str"),
    "seed-true": (order(seed=True), "seed: must be of type int, not bool"),
    "stream-empty": (order(stream={"host": "a"}), "stream.port: is missing"),
    "no-series": (
        order(task="generate", generate={"prompts": 3}),
        "generate.series: must be a whole number",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_order_that_is_wrong_is_refused_with_its_field(name: str) -> None:
    wanted, told = WRONG[name]
    code, output, errors = run(wanted)
    assert code == 2
    assert told in errors
    assert messages_in(output) == []
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({}, "engine.kind: None is none of mock"),
        ({"kind": "abacus"}, "engine.kind: 'abacus' is none of mock"),
        ({"kind": "transformers"}, "transformers and PyTorch are not installed here"),
        ({"kind": "vllm"}, "vllm is not installed here"),
        ({"kind": "openai"}, "engine.url: must be given for the engine openai"),
        (
            {
                "kind": "openai",
                "url": "http://127.0.0.1:9/v1",
                "model": "m",
                "wait_s": 0,
            },
            "does not answer",
        ),
        ({"kind": "mock", "delay_s": "soon"}, "ValueError: could not convert"),
    ],
)
def test_an_engine_that_cannot_be_had_is_told(
    engine: dict[str, Any], told: str
) -> None:
    code, output, _ = run(order(engine=engine))
    assert code == 1
    (message,) = messages_in(output)
    assert isinstance(message, Failed)
    assert told in message.reason


def test_a_busy_executor_declines_with_its_receipts(tmp_path: Path) -> None:
    receipts = [{"id": "rcp_1", "signature": "00"}]
    (tmp_path / "busy.json").write_text(json.dumps(receipts))
    environment = {"GPUYARD_VERIFY_BUSY": str(tmp_path / "busy.json")}
    code, output, _ = run(order(), environment=environment)
    assert code == 0
    assert messages_in(output) == [Declined(reason="busy", receipts=receipts)]
    (tmp_path / "busy.json").unlink()
    assert answers_in(run(order(), environment=environment)[1]) == solved(order())


def series_in(output: str, count: int, prompts: int) -> list[list[str]]:
    parcel = IncomingFile()
    for message in messages_in(output, SolverTask.GENERATE):
        if isinstance(message, SeriesPiece):
            parcel.add(message)
    return read_series(parcel, count, prompts)


@pytest.mark.parametrize(
    "engine",
    [{"kind": "mock"}, {"kind": "mock", "delay_s": 0.01}],
    ids=["ideas", "slow"],
)
def test_series_have_exactly_the_prompts_that_are_asked_for(
    engine: dict[str, Any],
) -> None:
    code, output, errors = run(
        order(
            task="generate",
            engine=engine,
            generate={"series": 5, "prompts": 40, "seed": 3},
        )
    )
    assert code == 0, errors
    series = series_in(output, 5, 40)
    everything = [prompt for one in series for prompt in one]
    assert len(set(everything)) == 200
    other = run(
        order(task="generate", generate={"series": 5, "prompts": 40, "seed": 4})
    )[1]
    assert not {prompt for one in series_in(other, 5, 40) for prompt in one} & set(
        everything
    )


def test_an_engine_without_ideas_is_topped_up() -> None:
    """One word at most: none of its answers is long enough to be a prompt."""
    wanted = order(
        task="generate",
        settings={"max_tokens": 1},
        generate={"series": 3, "prompts": 30, "seed": 3},
    )
    code, output, errors = run(wanted)
    assert code == 0, errors
    assert len({prompt for one in series_in(output, 3, 30) for prompt in one}) == 90


def claims_of(**options: Any) -> Claims:
    wanted = order(
        task="probe",
        claims={"nonce": "ab" * 16, "inventory": True, "vram_gb": 0, "speed": False},
    )
    code, output, errors = run(wanted, **options)
    assert code == 0, errors
    ready, claims = messages_in(output, SolverTask.PROBE)
    assert isinstance(ready, Ready)
    assert isinstance(claims, Claims)
    return claims


def test_without_a_gpu_the_inventory_is_empty(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_text("this is no library")
    claims = claims_of(environment={"LD_LIBRARY_PATH": str(tmp_path)})
    assert claims == Claims(inventory=[], took_s=claims.took_s)


def test_the_inventory_has_the_gpus_of_this_job_and_no_others(
    fake_gpus: FakeGpus,
) -> None:
    fake_gpus.add("GPU-aaa", cc="8.0")
    fake_gpus.add("GPU-bbb", name="NVIDIA RTX A6000", memory_mb=49140, cc="8.6")
    first = {
        "name": "NVIDIA A100-SXM4-40GB",
        "memory_mb": 40960,
        "uuid": "GPU-aaa",
        "driver": "550.54.14",
        "compute_capability": "8.0",
    }
    second = {
        "name": "NVIDIA RTX A6000",
        "memory_mb": 49140,
        "uuid": "GPU-bbb",
        "driver": "550.54.14",
        "compute_capability": "8.6",
    }
    shown = {
        None: [first, second],
        "GPU-bbb": [second],
        "1,0": [second, first],
        "": [],
        "7": [],
        "GPU-ccc,0": [first],
    }
    for named, gpus in shown.items():
        environment = {
            **fake_gpus.env(),
            **({} if named is None else {"CUDA_VISIBLE_DEVICES": named}),
        }
        assert claims_of(environment=environment).inventory == gpus, named


PRODUCTS = {"size": 16384, "steps": 3}


def test_proofs_are_for_these_answers_and_one_that_fails_is_told(
    tmp_path: Path,
) -> None:
    """Their nonce follows from the hash, so nobody can begin them before it."""
    copy = tmp_path / "solver"
    shutil.copytree(SOLVER, copy)
    (copy / "proofs.py").write_text(
        "def vram(nonce, gigabytes, passes):\n    return {'nonce': nonce, 'gb': gigabytes}\n"
        "def speed(nonce, size, steps):\n    raise RuntimeError('no CUDA here')\n"
    )
    wanted = order(
        claims={
            "inventory": False,
            "vram_gb": 40,
            "passes": 16,
            "speed": PRODUCTS,
        }
    )
    code, output, errors = run(wanted, solver=copy)
    assert code == 0, errors
    said = {message.type: message for message in messages_in(output)}
    hashed = said["hash"]
    claims = said["claims"]
    assert isinstance(hashed, Hash) and isinstance(claims, Claims)
    assert claims.inventory is None
    nonce = nonce_of("chk_1", 7, hashed.sha256)
    assert claims.vram == {"nonce": nonce, "gb": 40}
    assert claims.speed == {"failed": "RuntimeError: no CUDA here"}
    assert answers_in(output) == solved(order())


PREPARING = """
def prepare():
    print("prepared", flush=True)
def vram(nonce, gigabytes, passes):
    return {}
"""


@pytest.mark.parametrize("task", ["solve", "probe"])
def test_what_takes_long_and_needs_no_nonce_is_done_before_it_is_known(
    tmp_path: Path, task: str
) -> None:
    """Otherwise the import of PyTorch and the compilation of kernels would take the
    time of the proof, and a GPU in a new container would be late.
    """
    copy = tmp_path / "solver"
    shutil.copytree(SOLVER, copy)
    (copy / "proofs.py").write_text(PREPARING)
    wanted = order(task=task, claims={"nonce": "0a", "vram_gb": 40, "passes": 16})
    said = run_program(
        [sys.executable, "solve.py"],
        cwd=copy,
        input=json.dumps(wanted),
        timeout=60,
        stderr=subprocess.STDOUT,
    ).stdout
    assert said.count("prepared") == 1
    assert said.index("prepared") < said.index('"ready"')
