"""`python run_distributed_inference.py --config exp_config.json`: one rank of an
experiment.

Started once per rank by srun, torchrun or the deepspeed launcher, or alone. Needs
nothing of its environment but the
packages it imports: the folder it lies in becomes a package, wherever it was copied.
"""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

PACKAGE = "study_runtime"


def load_package() -> ModuleType:
    """Load this folder as the package `study_runtime`, whatever its name."""
    if PACKAGE not in sys.modules:
        folder = Path(__file__).resolve().parent
        spec = importlib.util.spec_from_file_location(
            PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PACKAGE])
        # Its modules are no top-level modules: they must not hide others of the same
        # name.
        sys.path[:] = [
            entry for entry in sys.path if Path(entry or ".").resolve() != folder
        ]
    return sys.modules[PACKAGE]


def run_distributed_stub(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; return 0 when it succeeded.

    Failures are reported on stderr and in the rank's metrics.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--config", type=Path, required=True, help="the strategy's exp_config.json"
    )
    # The deepspeed launcher adds this one; the environment says the same.
    parser.add_argument(
        "--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS
    )
    options = parser.parse_args(arguments)
    load_package()
    return importlib.import_module(f"{PACKAGE}.entry").main(options.config)


if __name__ == "__main__":
    sys.exit(run_distributed_stub())
