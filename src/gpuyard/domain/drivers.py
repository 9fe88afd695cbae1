"""Which versions of CUDA a driver of NVIDIA's runs."""

import re

# By the major version of CUDA: any minor one runs on this driver and later ones.
_LEAST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
_NUMBERS = re.compile(r"\d+(\.\d+)*")


def why_too_old(driver: str, cuda: str) -> str:
    """Why programs with this version of CUDA do not run on the driver, for people;
    empty if they do, or if that is not known.
    """
    installed = _version(driver)
    wanted = _version(cuda)
    least = _LEAST_DRIVER.get(wanted[0]) if wanted else None
    if not installed or least is None or installed >= least:
        return ""
    needed = ".".join(map(str, least))
    return f"its driver {driver} is too old for CUDA {cuda}, which needs {needed}"


def _version(text: str) -> tuple[int, ...]:
    found = _NUMBERS.match(text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
