"""Which versions of CUDA a driver of NVIDIA's runs, by the table of "Minor Version
Compatibility" (docs.nvidia.com/deploy/cuda-compatibility), read on 2026-11-29.
"""

import re

# By the major version of CUDA: any minor one runs on this driver and later ones.
_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
_NUMBERS = re.compile(r"\d+(\.\d+)*")


def why_too_old(driver: str, cuda: str) -> str:
    """Why programs with this version of CUDA do not run on the driver, for people;
    empty if they do, or if that is not known.
    """
    installed = _version(driver)
    wanted = _version(cuda)
    least = _LEAST_DRIVER.get(wanted[0]) if wanted else None
    if not installed or least is None or installed[0] >= least:
        return ""
    return f"its driver {driver} is too old for CUDA {cuda}, which needs {least}"


def _version(text: str) -> tuple[int, ...]:
    found = _NUMBERS.match(text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
