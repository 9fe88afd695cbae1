"""Puts the index of a batch into the folder of its results.

`python -m gpuyard.resource_manager.index_file` reads from standard input what to write,
and as which account. It starts as root and becomes the account before it opens
anything; so the account cannot look into it, or hold it up before it can be ended.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

from gpuyard.config.accounts import Account
from gpuyard.config.becoming import become
from gpuyard.storage.untrusted import entries, folder_beneath, write_beneath

# Whoever owns the folder can fill it with names.
_MOST_MEMORY_BYTES = 1 << 30


def write_index_file(folder: Path, index: dict[str, Any]) -> None:
    """Write `index.json` into `folder`, with the name of the result of each item that
    was completed. OSError.
    """
    # Scripts may write in the last folder of this path, and could replace it.
    with folder_beneath(folder.parent, [folder.name], make=0o777) as opened:
        names = [entry.name for entry in entries(opened) if entry.is_file]
    # The name of a result begins with the number of its item.
    results = {
        name.split("-")[0]: name
        for name in names
        if "-" in name and name.endswith(".json")
    }
    for item in index["items"]:
        if item["state"] == "completed":
            item["result"] = results.get(f"{item['number']:05}")
    content = json.dumps(index, indent=1).encode() + b"\n"
    write_beneath(folder.parent, f"{folder.name}/index.json", content, 0o666)


def main() -> int:
    """Write the index on standard input."""
    order = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        become(Account(**order["account"]), order["umask"])
        write_index_file(Path(order["folder"]), order["index"])
    except (OSError, MemoryError) as error:
        sys.stderr.write(f"{error or 'it takes more than 1 GB of memory'}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
