"""A small web server in the place of TensorBoard: it lists the folder of the runs."""

import os
from pathlib import Path

PROGRAM = """
import functools, http.server, sys
(port, folder) = (sys.argv[sys.argv.index(one) + 1] for one in ("--port", "--logdir"))
lists = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
http.server.HTTPServer(("127.0.0.1", int(port)), lists).serve_forever()
"""
LOGS = """
import time
open(f"events.out.tfevents.{time.time():.0f}.host.1.0", "w").close()
print('GPUYARD_METRIC {"tensorboard/loss": 0.5}')
"""
"""The program of a job that leaves an event file and has a curve of TensorBoard's."""


def with_board(folder: Path) -> dict[str, str]:
    """The environment of a job whose Python has this TensorBoard, made in `folder`."""
    package = folder / "site" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(PROGRAM)
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(package.parent)}
