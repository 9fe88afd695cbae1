"""AMD's GPUs for machines that have none: a fake of the package that ROCm brings, over
a state file.
"""

import os
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "programs" / "amd"
BUSY: dict[str, Any] = {
    "uuid": "GPU-00aa11bb22cc33dd",
    "name": "AMD Instinct MI210",
    "total": 65536,
    "used": 1024,
    "hot": 61,
    "critical": 100,
    "load": 40,
    "watts": 210,
    "ecc": 0,
    "processes": [[77, 512 << 20]],
    "drm_render": 129,
    "drm_card": 1,
}
PLAIN: dict[str, Any] = {
    "serial": "0xC6F220C172DC76BB",
    "total": 16384,
    "used": 0,
    "edge_hot": 40,
}


def environment(state: Path) -> dict[str, str]:
    """What a process must have in its environment to see the GPUs of the state file."""
    paths = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "FAKE_AMDSMI": str(state),
    }
