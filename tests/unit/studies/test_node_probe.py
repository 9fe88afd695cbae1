"""A job that looks at a node: what is wrong there is told before a study runs.

The instance is played by a small one, which runs the script of the job at once.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpuyard.client.connection import Address
from gpuyard.client.sync import Client
from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies.baseline_check import baseline_faults
from gpuyard.studies.node_probe import probe_node
from gpuyard.studies.runtime import probe
from gpuyard.studies.slurm_jobs import SlurmJobFactory
from gpuyard.studies.study import BaselineSection
from tests.integration.studies.endpoint import KEY, MODEL, fails, says, serve
from tests.support.nvml import LIBRARY, STATE_VARIABLE, FakeGpus
from tests.support.nvml.fixtures import fake_gpus, nvml_library
from tests.unit.studies.folders import make_study

__all__ = ["fake_gpus", "nvml_library"]
ONE = '[[strategies]]\nkind = "custom"\n'


class Instance:
    """Runs the script of a job when it is submitted, unless it only waits."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self.cancelled = False
        self.spec: dict[str, Any] = {}
        self.code = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/cancel"):
            self.cancelled = True
        elif request.method == "POST":
            self.spec = json.loads(request.content)
            if not self.waits:
                done = subprocess.run(
                    self.spec["command"], capture_output=True, timeout=60, check=False
                )
                self.code = done.returncode
        state = "failed" if self.code else "completed"
        return httpx.Response(
            201 if request.method == "POST" else 200,
            json={
                "id": "job_1",
                "name": "probe",
                "kind": "command",
                "state": "queued" if self.waits else state,
                "exit_code": self.code,
                "priority": 3,
                "created_at": 1.0,
            },
        )

    @property
    def client(self) -> Client:
        # On another host, so that no environment is carried there.
        address = Address("https://elsewhere.test", "secret")
        return Client(address, transport=httpx.MockTransport(self))


def test_what_a_node_lacks(tmp_path: Path) -> None:
    python = f'[slurm]\npython = "{sys.executable}"\n'
    strategies = f'{ONE}name = "a"\nengine = "sglang"\nquantized_model = "nowhere"\n'
    study = make_study(tmp_path, python, strategies)
    instance = Instance()
    found = probe_node(study, instance.client, "local", 60)
    faults = {(fault.field, fault.fault.rpartition(": ")[2]) for fault in found.faults}
    assert ("slurm.python", "No module named 'sglang'") in faults, found
    assert any("nowhere is not there on" in fault for _, fault in faults), found
    assert instance.spec["timeout_s"] == 300
    assert instance.spec["resources"]["nodes"] == 1


def test_an_interpreter_that_does_not_run(tmp_path: Path) -> None:
    study = make_study(tmp_path, '[slurm]\npython = "/no/python"\n', ONE)
    (fault,) = probe_node(study, Instance().client, "local", 60).faults
    assert fault.field == "slurm.python"
    assert "did not run on a node" in fault.fault
    assert "/no/python: No such file" in fault.fault
    assert fault.remedy.startswith("correct slurm.python")


def test_an_odd_report_of_a_node_is_none(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\necho \'{"gpus": 3}\' > "$(dirname "$3")/probe.json"\n'
    )
    python.chmod(0o755)
    study = make_study(tmp_path / "study", f'[slurm]\npython = "{python}"\n', ONE)
    (fault,) = probe_node(study, Instance().client, "local", 60).faults
    assert fault.fault.endswith("did not run on a node: it left nothing")


def test_a_job_that_waits_too_long_is_taken_back(tmp_path: Path) -> None:
    instance = Instance(waits=True)
    found = probe_node(make_study(tmp_path, "", ONE), instance.client, "slurm", 0.01)
    assert (found.faults, instance.cancelled) == ((), True)
    (warning,) = found.warnings
    assert "after 0.01 s and was taken back" in warning
    script = Path(instance.spec["provider_options"]["slurm"]["script"]).read_text()
    assert "#SBATCH --time=00:05:00\n" in script
    assert "runtime/probe.py --config" in script
    assert "srun" not in script


def test_the_names_of_gpus(
    fake_gpus: FakeGpus,
    nvml_library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "gpus.txt"))
    library = str(nvml_library / LIBRARY if nvml_library.is_dir() else nvml_library)
    fake_gpus.add("GPU-a", "NVIDIA H100")
    fake_gpus.add("GPU-b", "NVIDIA L4")
    assert probe.gpu_names(library) == ["NVIDIA H100", "NVIDIA L4"]
    assert probe.gpu_names("libno-such.so") == []


def test_the_runtime_has_the_probe(tmp_path: Path) -> None:
    study = make_study(tmp_path, "", ONE)
    factory = SlurmJobFactory(study, study.runs / "run_1")
    factory.copy_runtime()
    assert (study.runs / "run_1" / "runtime" / "probe.py").exists()


def test_an_endpoint_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serve() as endpoint:
        settings = BaselineSection(base_url=endpoint.url, model=MODEL)
        endpoint.answer = lambda *_: says("Yes.")
        assert baseline_faults(settings) == []
        assert endpoint.asked == {"Say yes.": 1}
        endpoint.answer = lambda *_: fails(404, "no such model")
        (fault,) = baseline_faults(settings)
        assert fault.field == "baseline.model" and "knows no model" in fault.fault
    (fault,) = baseline_faults(settings)
    assert fault.field == "baseline" and "did not answer" in fault.fault


def test_a_probe_on_kubernetes_is_a_pod(tmp_path: Path) -> None:
    section = (
        '[slurm]\npython = "PYTHON"\nmodules = ["cuda"]\napptainer_image = "x.sif"\n'
        '[kubernetes]\nimage = "torch:1"\nvolumes = { "/data" = "pvc:studies" }\n'
        'memory_gb = 16\ngpu_class = "a100-80gb"\n'
    )
    study = make_study(tmp_path, section.replace("PYTHON", sys.executable), ONE)
    instance = Instance()
    probe_node(study, instance.client, "kubernetes", 60)
    wanted = {
        "provider": "kubernetes",
        "image": "torch:1",
        "volumes": {"/data": "pvc:studies"},
        "timeout_s": 300.0,
    }
    assert wanted.items() <= instance.spec.items()
    resources = instance.spec["resources"]
    assert resources["gpus"] == {"count": 1, "gpu_class": "a100-80gb"}
    assert (resources["memory_gb"], resources["cpus"]) == (16, None)
    # A module, or a container in the container, would have ended it.
    assert instance.code == 0


def test_pods_need_an_image(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="pods need an image"):
        probe_node(make_study(tmp_path), Instance().client, "kubernetes", 1)
