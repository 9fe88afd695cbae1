"""Runs a server of MLflow on a node, for the jobs there.

`python3 mlflow_program.py PORT FOLDER`: it listens on that port of 127.0.0.1, and keeps
runs, models and artifacts in the folder. It uses only the standard library.
"""

import importlib.util
import socket
import subprocess
import sys
import time
from pathlib import Path

# The first start makes the tables.
READY_S = 180.0


def say(line: str) -> None:
    """Print a line at once: `gpuyard mlflow` waits for it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def answers(port: int) -> bool:
    """Whether a program listens on a port of this node."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def command(port: int, folder: Path) -> list[str]:
    """The words that start the server."""
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
        *("--artifacts-destination", str(folder / "artifacts")),
    ]


def main(arguments: list[str]) -> int:
    """Run until it is ended; the exit code."""
    if importlib.util.find_spec("mlflow") is None:
        say(f"{sys.executable} has no mlflow")
        return 3
    port = int(arguments[0])
    folder = Path(arguments[1]).expanduser().absolute()
    if answers(port):
        say(f"port {port} of this node is in use: choose another with --node-port")
        return 4
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # With `-m`, Python also imports from its folder, which may be somebody else's.
    process = subprocess.Popen(
        command(port, folder), stdin=subprocess.DEVNULL, cwd=folder
    )
    started = time.monotonic()
    while not answers(port):
        if process.poll() is not None or time.monotonic() - started > READY_S:
            say("MLflow did not start to listen")
            process.kill()
            return 1
        time.sleep(0.1)
    say(f"MLflow listens on port {port}")
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
