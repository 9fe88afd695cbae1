"""`python3 solve.py < order.json`: carry out an order and send the results.

It needs only what its engine imports. The folder it is in becomes a package, wherever
it was copied. The exit code is 0 when the order was carried out or declined, 1 when it
failed, and 2 when it cannot be read.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = "program"


def load_package() -> None:
    """Make this folder the package `program`, whatever its name is."""
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])
    # Its modules must not hide top-level modules of the same name.
    sys.path[:] = [
        entry for entry in sys.path if Path(entry or ".").resolve() != folder
    ]


if __name__ == "__main__":
    load_package()
    sys.exit(importlib.import_module(f"{PACKAGE}.entry").main())
