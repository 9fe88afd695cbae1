"""Puts the index of a batch into the folder of its results.

`python -m gpuyard.resource_manager.index_file FOLDER` reads the index from standard
input: so an account does it that is not the server's. Standard library only, because
the start of that program is all that takes time.
"""

import json
import sys
from pathlib import Path
from typing import Any

from gpuyard.storage.untrusted import entries, folder_beneath, write_beneath


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
    try:
        write_index_file(Path(sys.argv[1]), json.load(sys.stdin))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
