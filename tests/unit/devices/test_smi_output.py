"""What each line of nvidia-smi's output becomes."""

import pytest

from gpuyard.devices.gpu import GpuReading, LostGpu, SourceFailedError
from gpuyard.devices.smi import parse

ROW = "GPU-1, 0, NVIDIA A100-SXM4-40GB, 40960, 40000, 8.0, 550.54.14, 35, 12, 61.25"


def test_a_row_is_a_gpu() -> None:
    assert parse(ROW) == [
        GpuReading(
            uuid="GPU-1",
            index=0,
            name="NVIDIA A100-SXM4-40GB",
            memory_total_mb=40960,
            memory_free_mb=40000,
            compute_capability="8.0",
            driver_version="550.54.14",
            temperature_c=35,
            utilization=0.12,
            power_w=61.25,
            processes=(),
            mig=False,
        )
    ]


@pytest.mark.parametrize(
    "absent", ["[N/A]", "[Not Supported]", "N/A", "[Unknown Error]", ""]
)
def test_a_value_not_told_is_none(absent: str) -> None:
    (gpu,) = parse(
        f"GPU-1, 0, Tesla K80, 11441, 11441, {absent}, 470.1, {absent}, {absent},"
        f" {absent}"
    )
    assert isinstance(gpu, GpuReading)
    assert (
        gpu.compute_capability,
        gpu.temperature_c,
        gpu.utilization,
        gpu.power_w,
    ) == ("", None, None, None)


@pytest.mark.parametrize(
    ("row", "lost"),
    [
        (
            (
                "GPU-1, 3, NVIDIA A100, [GPU is lost], [GPU is lost], 8.0, 550, [GPU is"
                " lost], [GPU is lost], [N/A]"
            ),
            LostGpu("GPU-1", 3, "nvidia-smi shows [GPU is lost] for it"),
        ),
        (
            "GPU-1, [Unknown Error], NVIDIA A100, 40960, 40960, 8.0, 550, 35, 0, 61",
            LostGpu("GPU-1", None, "nvidia-smi shows [Unknown Error] for it"),
        ),
        (
            "GPU-1, 0, NVIDIA A100, -5, nan, 8.0, 550, 35, 0, 61",
            LostGpu("GPU-1", 0, "nvidia-smi shows -5 for it"),
        ),
    ],
)
def test_a_row_without_its_memory_or_index_is_a_lost_gpu(
    row: str, lost: LostGpu
) -> None:
    assert parse(row) == [lost]


def test_warnings_around_the_rows_are_passed_over() -> None:
    (gpu,) = parse(f"\n{ROW}\nWARNING: infoROM is corrupted at gpu 0000:00:1E.0\n")
    assert isinstance(gpu, GpuReading)


def test_prose_about_a_lost_gpu_stands_for_it() -> None:
    prose = (
        "Unable to determine the device handle for GPU0000:0A:00.0: GPU is lost. "
        " Reboot the system"
    )
    gpu, lost = parse(f"{ROW}\n{prose}")
    assert isinstance(gpu, GpuReading)
    assert lost == LostGpu(None, None, prose)


def test_no_devices_is_an_answer() -> None:
    assert parse("No devices were found\n") == []


@pytest.mark.parametrize(
    "output",
    ["", "\n\n", "garbage", "a, b, c, d, e, f, g, h, i, j", ROW.replace("GPU-", "")],
)
def test_no_row_at_all_is_a_failure(output: str) -> None:
    with pytest.raises(SourceFailedError, match="nvidia-smi printed"):
        parse(output)
