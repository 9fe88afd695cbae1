"""A folder that everybody on this machine may enter: pytest's own are private."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def open_folder() -> Generator[Path]:
    """A folder with a program, `train.py`, and what is its owner's alone: the file
    `.env.py` and the folder `keys`.
    """
    with TemporaryDirectory(dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        for name in ("train.py", ".env.py", "keys/id.py"):
            file = folder / name
            file.parent.mkdir(mode=0o700, exist_ok=True)
            file.write_text(name)
            file.chmod(0o644)
        (folder / ".env.py").chmod(0o640)
        yield folder
