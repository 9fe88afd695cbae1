"""Read what one rank wrote: its shard of rows and the footer with its metrics.

The files are `outputs/shard_<rank>.jsonl` and `metrics/metrics_rank_<rank>.json`. A
shard is read in blocks of some megabytes: by pyarrow if the block is intact, else line
by line, so that a damaged line costs only itself. A shard is read no further than to a
line that is far too long. `faults` describes in words what was wrong.
"""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from gpuyard.storage.untrusted import UntrustedFileError
from gpuyard.studies.left_files import LONGEST_LINE, open_left, read_left_object

BLOCK = 8 << 20
"""Bytes read at a time."""
SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("variant", pa.string()),
        ("strategy_id", pa.string()),
        ("completion", pa.string()),
        ("latency_ms", pa.float64()),
        ("tokens_generated", pa.int64()),
        ("ttft_ms", pa.float64()),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("runner_up_ids", pa.list_(pa.int32())),
        ("runner_up_logprobs", pa.list_(pa.float32())),
        ("prompt_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("batch", pa.int64()),
        ("rank", pa.int64()),
    ]
)
"""A row's columns; what else a row carries is left in the shard."""
_PARSE = pj.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")

_Count = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_TokenId = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class _Row(msgspec.Struct):
    """A row of SCHEMA, for lines that are read one by one."""

    prompt_id: str
    variant: str
    strategy_id: str | None = None
    completion: str | None = None
    latency_ms: float | None = None
    tokens_generated: _Count | None = None
    ttft_ms: float | None = None
    token_ids: list[_TokenId] | None = None
    logprobs: list[float] | None = None
    runner_up_ids: list[_TokenId] | None = None
    runner_up_logprobs: list[float] | None = None
    prompt_tokens: _Count | None = None
    finish_reason: str | None = None
    batch: _Count | None = None
    rank: _Count | None = None


_decode_row = msgspec.json.Decoder(_Row).decode


class ResultShard:
    """One rank's output below a strategy's folder.

    `tables` may be read once; after that, `rows` and `faults` are complete. Missing
    files are reported by `is_there` and `has_footer`, not as faults.
    """

    def __init__(self, folder: Path, rank: int, output: str, metrics: str) -> None:
        """`output` and `metrics` are the names of its two files."""
        self.rank = rank
        self._folder = folder
        self.path = folder / "outputs" / output
        self.rows = 0
        self.faults: list[str] = []
        self.is_there = self.path.is_file()
        self.footer_path = folder / "metrics" / metrics
        self.has_footer = self.footer_path.is_file()
        self.footer = self._read_footer() if self.has_footer else None

    def tables(self) -> Iterator[pa.Table]:
        """The rows as tables of SCHEMA, in the order of the file."""
        try:
            yield from self._tables()
        except OSError as error:
            why = error.strerror or error
            self.faults.append(f"{self.path.name} cannot be read: {why}")
        self._check_footer()

    def _tables(self) -> Iterator[pa.Table]:
        line = 1
        for block in self._blocks() if self.is_there else ():
            table = _parse(block)
            if table is None:
                table = self._line_by_line(block, line)
                line += block.count(b"\n")
            else:
                line += table.num_rows
            self.rows += table.num_rows
            yield table

    def _line_by_line(self, block: bytes, number: int) -> pa.Table:
        rows: list[dict[str, Any]] = []
        *whole, rest = block.split(b"\n")
        last = number + len(whole)
        for at, line in enumerate([*whole, rest], number):
            if not line.strip():
                continue
            try:
                rows.append(msgspec.structs.asdict(_decode_row(line)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if at == last:
                    self.faults.append(
                        f"the last line of {self.path.name} (line {at}) is cut off and"
                        " left out"
                    )
                else:
                    self.faults.append(
                        f"line {at} of {self.path.name} is no result and left out:"
                        f" {error}"
                    )
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def _read_footer(self) -> Mapping[str, Any] | None:
        name = self.footer_path.relative_to(self._folder)
        try:
            return read_left_object(self._folder, name)
        except (OSError, ValueError) as error:
            self.faults.append(f"{name.name} cannot be read: {error}")
            return None

    def _blocks(self) -> Iterator[bytes]:
        """Yield whole lines, about BLOCK bytes at a time.

        Only the last block may end without a line end. UntrustedFileError for a line
        that is too long.
        """
        rest: list[bytes] = []
        length = 0
        with open_left(self._folder, self.path.relative_to(self._folder)) as file:
            while data := file.read(BLOCK):
                cut = data.rfind(b"\n") + 1
                if cut:
                    yield b"".join([*rest, data[:cut]])
                    rest = []
                    length = 0
                rest.append(data[cut:])
                length += len(data) - cut
                if length > LONGEST_LINE:
                    fault = f"a line has more than {LONGEST_LINE:,} bytes"
                    raise UntrustedFileError(fault)
        if length:
            yield b"".join(rest)

    def _check_footer(self) -> None:
        if self.footer is None or not self.is_there:
            return
        said = self.footer.get("rows")
        if said != self.rows:
            self.faults.append(
                f"{self.path.name} has {self.rows} rows, its footer says {said}"
            )
        if self.footer.get("complete") is not True:
            self.faults.append(
                f"the footer of {self.path.name} says that it is not complete"
            )
        if self.footer.get("rank", self.rank) != self.rank:
            self.faults.append(
                f"the footer of {self.path.name} is of rank {self.footer['rank']}"
            )
        if self.footer.get("error"):
            self.faults.append(f"rank {self.rank} says: {self.footer['error']}")


def _parse(block: bytes) -> pa.Table | None:
    """The table of a sound block; None where a line may be damaged.

    pyarrow crashes on a line `null` and takes some that are no objects, so it is given
    only lines in braces.
    """
    lines = _braced_lines(block)
    if not lines or not _is_text(block):
        return None
    try:
        # Several blocks at once where there is more than one core; a line may be as
        # long as the whole block.
        table = pj.read_json(
            pa.BufferReader(block), pj.ReadOptions(block_size=1 << 20), _PARSE
        )
    except pa.ArrowException:
        return None
    sound = (
        table.num_rows == lines
        and not table["prompt_id"].null_count
        and not table["variant"].null_count
    )
    return table if sound else None


def _braced_lines(block: bytes) -> int:
    """How many lines there are, if each is whole and in braces; else 0."""
    letters = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(letters == ord("\n"))
    if not block.startswith(b"{") or not len(ends) or ends[-1] != len(letters) - 1:
        return 0
    braced = np.all(letters[ends - 1] == ord("}")) and np.all(
        letters[ends[:-1] + 1] == ord("{")
    )
    return len(ends) if braced else 0


def _is_text(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True
