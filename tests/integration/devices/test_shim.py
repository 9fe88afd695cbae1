"""The fake NVML library itself, through nvidia-ml-py: what health checks will ask, and
that it behaves like NVML.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml import FakeGpus, build

UUID = "GPU-11111111"


@pytest.fixture
def gpu(fake_gpus: FakeGpus) -> FakeGpus:
    fake_gpus.add(UUID)
    return fake_gpus


def ask(gpus: FakeGpus, expression: str) -> Any:
    """Evaluate an expression over pynvml's names and `gpu`, the handle of UUID, in a
    process that sees the GPUs.
    """
    program = (
        "import json; from pynvml import *; import pynvml; nvmlInit()\n"
        f"gpu = nvmlDeviceGetHandleByUUID({UUID!r})\n"
        f"try: print(json.dumps({expression}))\n"
        "except NVMLError as error: print(json.dumps(str(error)))"
    )
    return json.loads(
        subprocess.check_output(
            [sys.executable, "-c", program], env=os.environ | gpus.env()
        )
    )


@pytest.mark.parametrize(
    ("values", "expression", "expected"),
    [
        ({}, "nvmlSystemGetDriverVersion()", "550.54.14"),
        ({}, "nvmlDeviceGetIndex(gpu)", 0),
        ({}, "nvmlDeviceGetMaxMigDeviceCount(gpu)", 0),
        (
            {"temperature": 91},
            "nvmlDeviceGetTemperatureV(gpu, NVML_TEMPERATURE_GPU)",
            91,
        ),
        (
            {"memory_used_mb": 960},
            "nvmlDeviceGetMemoryInfo(gpu, nvmlMemory_v2).free >> 20",
            40000,
        ),
        (
            {"ecc": 3},
            (
                "nvmlDeviceGetTotalEccErrors(gpu, NVML_MEMORY_ERROR_TYPE_UNCORRECTED,"
                " NVML_VOLATILE_ECC)"
            ),
            3,
        ),
        (
            {"ecc": None},
            "nvmlDeviceGetTotalEccErrors(gpu, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 0)",
            "Not Supported",
        ),
        (
            {"ecc_corrected": 9},
            "nvmlDeviceGetTotalEccErrors(gpu, NVML_MEMORY_ERROR_TYPE_CORRECTED, 1)",
            9,
        ),
        ({"remapped_rows": "1 2 1 0"}, "nvmlDeviceGetRemappedRows(gpu)", [1, 2, 1, 0]),
        ({"mig_mode": 1}, "nvmlDeviceGetMigMode(gpu)", [1, 1]),
        ({"lost": "reads"}, "nvmlDeviceGetTotalEccErrors(gpu, 1, 0)", "GPU is lost"),
    ],
)
def test_a_value_set_is_a_value_read(
    gpu: FakeGpus, values: dict[str, Any], expression: str, expected: object
) -> None:
    gpu.set(UUID, **values)
    assert ask(gpu, expression) == expected


def test_an_unknown_value_is_refused(gpu: FakeGpus) -> None:
    with pytest.raises(KeyError, match="temprature"):
        gpu.set(UUID, temprature=50)


def test_gpus_are_listed_when_nvml_is_opened_and_not_later(gpu: FakeGpus) -> None:
    program = (
        "import pynvml as n; n.nvmlInit(); n.nvmlInit()\n"
        "count = lambda: print(n.nvmlDeviceGetCount(), flush=True)\n"
        "count(); input(); count(); n.nvmlShutdown(); n.nvmlInit(); count()\n"
        "n.nvmlShutdown(); n.nvmlShutdown(); n.nvmlInit(); count()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | gpu.env(), text=True, **pipes
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        gpu.add("GPU-22222222")
        assert process.communicate("\n")[0] == "1\n1\n2\n"


def test_without_a_compiler_the_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match="apt-get install gcc"):
        build(tmp_path)
