"""The same two classes on other machines' terms: containers of a real Docker, nodes of a real Slurm, a real model."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_slurm import settings as slurm_settings
from tests.support import huggingface
from tests.support.dockerd import IMAGE, Dockerd
from tests.support.model_server import OFFLINE
from tests.support.slurm import SlurmCluster
from tests.support.verifying import cheating, configure, executor, outcomes, section, verify
from tests.support.yard import TestYard, make_yard

trainer_python = huggingface.trainer_python
PROGRAMS = Path(__file__).parents[1] / "programs" / "tinymodel"
NAMES = ("stream12", "stdin12", "stream6", "stdin6")


def sections(**place: Any) -> list[str]:
    """Trusted executors on this machine, and four others in `place`."""
    return [
        executor("trusted12", "practice-12", trusted=True),
        executor("trusted6", "practice-6", trusted=True),
        executor("stream12", "practice-12", **place),
        executor("stdin12", "practice-12", stream=False, **place),
        executor("stream6", "practice-6", **place),
        executor("stdin6", "practice-6", stream=False, **place),
    ]


def check_jobs(yard: TestYard, found: dict[str, dict[str, Any]], provider: str) -> None:
    """All passed, there."""
    assert outcomes(found) == dict.fromkeys(NAMES, "passed"), found
    jobs = yard.json("jobs", "--limit", "1000")["items"]
    there = {job["name"] for job in jobs if job["provider"] == provider}
    assert there == {f"verify {name}" for name in NAMES}
    assert {job["state"] for job in jobs} == {"completed"}
    places = {one["place"]: one["score"] for one in yard.json("trust")["items"]}
    assert places == {provider: 1.0}


@pytest.fixture
def docker_yard(dockerd: Dockerd) -> Iterator[TestYard]:
    with make_yard() as yard:
        docker = f'[providers.docker]\nhost = "{dockerd.host}"\npoll_s = 0.2\n'
        # A container's own loopback is not ours: it reaches us at the bridge's address.
        bridge = dockerd.call("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}").stdout.strip()
        hub = section("verification", host="0.0.0.0", public_host=bridge)
        configure(yard, docker, hub, *sections(provider="docker", image=IMAGE))
        yield yard


@pytest.fixture
def slurm_yard(slurm: SlurmCluster) -> Iterator[TestYard]:
    with make_yard() as yard:
        configure(yard, slurm_settings(slurm), *sections(provider="slurm"))
        yield yard
        slurm.call("scancel", "--me", check=False)


@pytest.mark.slow
def test_two_classes_pass_in_containers(docker_yard: TestYard) -> None:
    check_jobs(docker_yard, verify(docker_yard, *NAMES), "docker")


@pytest.mark.slow
def test_two_classes_pass_on_nodes_of_slurm(slurm_yard: TestYard) -> None:
    check_jobs(slurm_yard, verify(slurm_yard, *NAMES), "slurm")


@pytest.fixture(scope="session")
def tiny_models(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders with models that say nonsense, each another."""
    folders = tmp_path_factory.mktemp("tiny"), tmp_path_factory.mktemp("other")
    for folder, text in zip(folders, ("README.md", "CONTRIBUTING.md"), strict=True):
        words = [trainer_python, PROGRAMS / "make.py", folder, PROGRAMS.parents[2] / text]
        subprocess.run(words, check=True, env=OFFLINE, capture_output=True)
    return folders


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_models_answers_depend_on_the_seed_and_another_model_fails(
    yard: TestYard, trainer_python: Path, tiny_models: tuple[Path, Path]
) -> None:  # fmt: skip
    mine, other = ({"kind": "transformers", "model": str(folder), "options": {"device": "cpu"}}
                   for folder in tiny_models)  # fmt: skip
    runs = {"python": str(trainer_python), "cpus": 0.6}
    guesses = {**runs, "python": cheating(yard, "guesses", trainer_python)}
    configure(yard, executor("trusted", "practice-6", trusted=True, engine=mine, **runs),
              executor("honest", "practice-6", engine=mine, **runs),
              executor("guesses", "practice-6", engine=mine, **guesses),
              executor("other", "practice-6", engine=other, **runs))  # fmt: skip
    found = verify(yard, "honest", "guesses", "other", code=1, timeout=200)
    assert outcomes(found) == {"honest": "passed", "guesses": "failed", "other": "failed"}, found
    for name in ("guesses", "other"):
        assert "asked again, says the same as before" in found[name]["reason"]
