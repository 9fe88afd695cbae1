"""The runner as one file: an archive of the modules of `node/runner/` that Python can
run.
"""

import io
import zipfile
from functools import cache
from pathlib import Path

import gpuyard

_MODULES = Path(gpuyard.__file__).parent / "node" / "runner"
_MAIN = "import sys\n\nfrom runner.attempt import main\n\nsys.exit(main())\n"


@cache
def runner_archive() -> bytes:
    """The same bytes for the same modules; not compressed, since a Python may be built
    without zlib.
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(zipfile.ZipInfo("__main__.py"), _MAIN)
        for module in sorted(_MODULES.glob("*.py")):
            name = zipfile.ZipInfo(f"runner/{module.name}")
            packed.writestr(name, module.read_bytes())
    return archive.getvalue()
