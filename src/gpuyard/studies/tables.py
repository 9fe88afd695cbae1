"""Convert rows to data frames and back, and write files atomically."""

# pandas and pyarrow have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.domain.errors import NotFoundError

if TYPE_CHECKING:
    from pandas import DataFrame


def frame_of(rows: Sequence[Mapping[str, Any]], types: Any) -> "DataFrame":
    """A frame of rows; a whole number that may be missing stays a whole number."""
    import pyarrow as pa

    return _to_frame(pa.Table.from_pylist([dict(row) for row in rows], schema=types))


def _to_frame(table: Any) -> "DataFrame":
    import pandas as pd
    import pyarrow as pa

    whole = {pa.int64(): pd.Int64Dtype()}
    return table.to_pandas(types_mapper=whole.get, strings_to_categorical=False)


def rows_of(frame: "DataFrame") -> list[dict[str, Any]]:
    """The rows of a frame as plain values, None for what is missing."""
    import pyarrow as pa

    return pa.Table.from_pandas(frame, preserve_index=False).to_pylist()


def write_table(frame: "DataFrame", path: Path) -> None:
    """Write a frame to a Parquet file, whole or not at all."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    replace_file(path, buffer.getvalue())


def read_table(path: Path) -> "DataFrame":
    """The frame in a Parquet file; NotFoundError where there is none."""
    import pyarrow.parquet as pq

    if not path.is_file():
        raise NotFoundError(f"There is no table {path}.")
    return _to_frame(pq.read_table(path))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old or the new content.

    This also holds after a crash.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
