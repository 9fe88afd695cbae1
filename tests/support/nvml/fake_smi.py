"""What `nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits` prints for the
GPUs of the fake NVML library.
"""

import os
import sys
from pathlib import Path

KEYS = {
    "uuid": "gpu",
    "name": "name",
    "memory.total": "memory_mb",
    "memory.used": "memory_used_mb",
    "compute_cap": "cc",
    "temperature.gpu": "temperature",
    "utilization.gpu": "utilization",
    "power.draw": "power_w",
}


def answer(options: dict[str, str]) -> tuple[int, list[str]]:
    """The exit code and the lines for the options given."""
    if options.get("--format") != "csv,noheader,nounits" or not options.get(
        "--query-gpu"
    ):
        return 2, [
            "this nvidia-smi only takes --query-gpu=… --format=csv,noheader,nounits"
        ]
    driver, gpus = read_state(Path(os.environ["FAKE_NVML_STATE"]))
    if not gpus:
        return 6, ["No devices were found"]
    fields = options["--query-gpu"].split(",")
    return 15 if any("lost" in gpu for gpu in gpus) else 0, [
        (
            "Unable to determine the device handle for GPU0000:01:00.0: GPU is lost. "
            " Reboot the system"
            if gpu.get("lost") == "handle"
            else ", ".join(show(gpu, field, index, driver) for field in fields)
        )
        for index, gpu in enumerate(gpus)
    ]


def read_state(path: Path) -> tuple[str, list[dict[str, str]]]:
    """The driver's version and the values of each GPU; MIG instances are left out, as
    the query leaves them out.
    """
    sections: list[dict[str, str]] = [{}]
    for key, _, value in (
        line.partition(" ") for line in path.read_text().splitlines()
    ):
        if key in ("gpu", "mig"):
            sections.append({})
        sections[-1][key] = value
    return sections[0].get("driver", "[N/A]"), [
        section for section in sections if "gpu" in section
    ]


def show(gpu: dict[str, str], field: str, index: int, driver: str) -> str:
    known = {"index": str(index), "driver_version": driver, "uuid": gpu["gpu"]}
    if field in known:
        return known[field]
    if "lost" in gpu:
        return "[GPU is lost]"
    if field == "memory.free":
        return str(int(gpu["memory_mb"]) - int(gpu["memory_used_mb"]))
    if field == "power.draw" and "power_w" in gpu:
        return f"{float(gpu['power_w']):.2f}"
    return gpu.get(KEYS[field], "[N/A]")


if __name__ == "__main__":
    code, lines = answer(
        dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    )
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.exit(code)
