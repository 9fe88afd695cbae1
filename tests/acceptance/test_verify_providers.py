"""Verification on other machines' terms: containers of a real Docker, nodes of a real
Slurm, pods of a Kubernetes (a full fake, whose containers are processes), a real model.

`test_verify.py` shows several classes at once.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.verification.packing import PROGRAM_NAMES, SOLVER
from gpuyard.verification.solver.order import VERSION
from tests.acceptance.test_slurm import settings as slurm_settings
from tests.support import huggingface
from tests.support.dockerd import IMAGE, Dockerd
from tests.support.instance import TestInstance, make_instance
from tests.support.kubernetes import Cluster, Node
from tests.support.model_server import OFFLINE
from tests.support.programs import run_program
from tests.support.slurm import SlurmCluster
from tests.support.verifying import (
    cheating,
    configure,
    executor,
    outcomes,
    section,
    verify,
)

trainer_python = huggingface.trainer_python
ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs" / "tinymodel"
SOLVER_IMAGE = "gpuyard/solver:1"
SOLVER_INSIDE = "/opt/gpuyard/solver/solve.py"
# In place of Docker's image of Python, which cannot be fetched: what our Dockerfile
# takes from it and from Debian.
BASE = rf"""FROM {IMAGE}
RUN cd /usr/local/bin && echo '#!/bin/sh' > apt-get && printf '#!/bin/sh\nshift\nexec "$@"\n' > tini && chmod +x *
"""
NAMES = ("stream", "stdin")


def sections(**place: Any) -> list[str]:
    """A trusted executor on this machine, and two others in `place`."""
    return [
        executor("trusted", "practice-6", trusted=True),
        executor("stream", "practice-6", **place),
        executor("stdin", "practice-6", stream=False, **place),
    ]


def check_jobs(
    instance: TestInstance, found: dict[str, dict[str, Any]], provider: str
) -> None:
    """All passed, there."""
    assert outcomes(found) == dict.fromkeys(NAMES, "passed"), found
    jobs = instance.json("jobs", "--limit", "1000")["items"]
    there = {job["name"] for job in jobs if job["provider"] == provider}
    assert there <= set(PROGRAM_NAMES), "no job says what it is"
    assert {job["state"] for job in jobs} == {"completed"}
    places = {one["place"]: one["score"] for one in instance.json("trust")["items"]}
    assert places == {provider: 1.0}


def docker_sections(dockerd: Dockerd) -> list[str]:
    """An instance's settings for it."""
    docker = f'[providers.docker]\nhost = "{dockerd.host}"\npoll_s = 0.2\n'
    # A container's own loopback is not ours: it reaches us at the bridge's address.
    bridge = dockerd.call(
        "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}"
    ).stdout.strip()
    return [docker, section("verification", host="0.0.0.0", public_host=bridge)]


@pytest.fixture
def docker_instance(dockerd: Dockerd) -> Iterator[TestInstance]:
    with make_instance() as instance:
        configure(
            instance,
            *docker_sections(dockerd),
            *sections(provider="docker", image=IMAGE),
        )
        yield instance


@pytest.fixture(scope="module")
def solver_image(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The solver's image, built as its Dockerfile says."""
    dockerfile = ROOT / "deploy/images/solver.Dockerfile"
    (base,) = (
        line.removeprefix("ARG BASE=")
        for line in dockerfile.read_text().splitlines()
        if line.startswith("ARG BASE=")
    )
    context = tmp_path_factory.mktemp("context")
    for folder in ("deploy/images", "src/gpuyard/verification/solver"):
        shutil.copytree(
            ROOT / folder,
            context / folder,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    (context / "base").write_text(BASE)
    for tag, file in (
        (base, "base"),
        (SOLVER_IMAGE, "deploy/images/solver.Dockerfile"),
    ):
        dockerd.call(
            "build",
            "--network",
            "none",
            "--tag",
            tag,
            "--file",
            str(context / file),
            str(context),
        )
    return SOLVER_IMAGE


@pytest.fixture
def slurm_instance(slurm: SlurmCluster) -> Iterator[TestInstance]:
    with make_instance() as instance:
        configure(instance, slurm_settings(slurm), *sections(provider="slurm"))
        yield instance
        slurm.call("scancel", "--me", check=False)


@pytest.mark.slow
def test_executors_pass_in_containers(docker_instance: TestInstance) -> None:
    check_jobs(docker_instance, verify(docker_instance, *NAMES), "docker")


@pytest.mark.slow
def test_executors_pass_in_containers_that_bring_the_solver_along(
    dockerd: Dockerd, solver_image: str
) -> None:
    with make_instance() as instance:
        place = {"provider": "docker", "image": solver_image}
        old = executor("old", "practice-6", solver="/opt/solve.py", **place)
        configure(
            instance,
            *docker_sections(dockerd),
            *sections(solver=SOLVER_INSIDE, **place),
            old,
        )
        check_jobs(instance, verify(instance, *NAMES), "docker")
        found = verify(instance, "old", code=1)["old"]
        assert found["outcome"] == "failed"
        assert "can't open file '/opt/solve.py'" in found["reason"], (
            "it is told where to look"
        )


@pytest.mark.slow
def test_the_solvers_image_solves_an_order_on_its_own(
    dockerd: Dockerd, solver_image: str
) -> None:
    order = {
        "version": VERSION,
        "check": "chk_1",
        "task": "solve",
        "prompts": ["a?", "b?"],
        "seed": 1,
        "engine": {"kind": "mock"},
    }
    words = [
        "docker",
        "-H",
        dockerd.host,
        "run",
        "--rm",
        "--interactive",
        "--network",
        "none",
        "--read-only",
    ]
    done = subprocess.run(
        [*words, solver_image],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    said = [
        json.loads(line.partition(" ")[2])["type"]
        for line in done.stdout.splitlines()
        if line
    ]
    assert said == ["ready", "hash", "answers"]
    assert (
        dockerd.call("inspect", "-f", "{{.Config.User}}", solver_image).stdout.strip()
        == "10001:10001"
    )


@pytest.fixture
def cluster_instance(tmp_path: Path) -> Iterator[TestInstance]:
    """An instance and a cluster that share no folder.

    A claim holds what the image would: a pod's root is this host's.
    """
    spec = {
        "accessModes": ["ReadOnlyMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "solver"},
        "spec": spec,
    }
    with Cluster([Node("n1"), Node("n2")]) as cluster, make_instance() as instance:
        cluster.add_image(SOLVER_IMAGE)
        cluster.create(claim)
        shutil.copytree(SOLVER, cluster.claim("solver"), dirs_exist_ok=True)
        fields = {
            "kubeconfig": str(cluster.kubeconfig(tmp_path / "kubeconfig")),
            "namespace": "default",
            "poll_s": 0.2,
            "volumes": {str(Path(SOLVER_INSIDE).parent): "pvc:solver"},
        }
        place = {"provider": "kubernetes", "image": SOLVER_IMAGE}
        configure(
            instance,
            section("providers.kubernetes", **fields),
            *sections(solver=SOLVER_INSIDE, **place),
            executor("without", "practice-6", **place),
        )
        yield instance


@pytest.mark.slow
def test_executors_pass_in_pods_that_bring_the_solver_along(
    cluster_instance: TestInstance,
) -> None:
    check_jobs(cluster_instance, verify(cluster_instance, *NAMES), "kubernetes")
    found = verify(cluster_instance, "without", code=1)["without"]
    assert "can't open file '/gpuyard/work/" in found["reason"], (
        "our folder does not reach it"
    )


@pytest.mark.slow
def test_executors_pass_on_nodes_of_slurm(slurm_instance: TestInstance) -> None:
    check_jobs(slurm_instance, verify(slurm_instance, *NAMES), "slurm")


@pytest.fixture(scope="session")
def tiny_models(
    trainer_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Two folders with models that say nonsense, each another."""
    folders = tmp_path_factory.mktemp("tiny"), tmp_path_factory.mktemp("other")
    for folder, text in zip(folders, ("README.md", "CONTRIBUTING.md"), strict=True):
        words = [
            trainer_python,
            PROGRAMS / "make.py",
            folder,
            PROGRAMS.parents[2] / text,
        ]
        run_program(words, env=OFFLINE)
    return folders


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    "GPUYARD_REAL_MODELS" not in os.environ,
    reason="loads a model a dozen times, so `make soak` does it; test_solver_engines.py"
    " shows what the engine answers, and test_verify_cheaters.py who guesses",
)
def test_a_real_models_answers_depend_on_the_seed_and_another_model_fails(
    instance: TestInstance, trainer_python: Path, tiny_models: tuple[Path, Path]
) -> None:
    mine, other = (
        {"kind": "transformers", "model": str(folder), "options": {"device": "cpu"}}
        for folder in tiny_models
    )
    runs = {"python": str(trainer_python), "cpus": 0.6}
    guesses = {**runs, "python": cheating(instance, "guesses", trainer_python)}
    configure(
        instance,
        executor("trusted", "practice-6", trusted=True, engine=mine, **runs),
        executor("honest", "practice-6", engine=mine, **runs),
        executor("guesses", "practice-6", engine=mine, **guesses),
        executor("other", "practice-6", engine=other, **runs),
    )
    found = verify(instance, "honest", "guesses", "other", code=1, timeout=800)
    assert outcomes(found) == {
        "honest": "passed",
        "guesses": "failed",
        "other": "failed",
    }, found
    for name in ("guesses", "other"):
        assert "asked again, says the same as before" in found[name]["reason"]
