"""Read what one rank wrote: its shard of rows and the footer with its metrics.

The files are `outputs/shard_<rank>.jsonl` and `metrics/metrics_rank_<rank>.json`. A
shard is read in blocks of some megabytes: by pyarrow if the block is intact, else line
by line, so that a damaged line costs only itself. A shard is read no further than to a
line that is far too long, and to as many lines as its reader takes. `faults` describes
in words what was wrong.
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
_MOST_NAMED = 20
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

    `tables` may be read once; after that, `rows`, `lines`, `is_cut` (there are more
    lines than were read) and `faults` are complete. Missing files are reported by
    `is_there` and `has_footer`, not as faults.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        output: str,
        metrics: str,
        longest: int = LONGEST_LINE,
    ) -> None:
        """`output` and `metrics` are the names of its two files.

        A line with more than `longest` bytes is left out.
        """
        self.rank = rank
        self._folder = folder
        self._longest = longest
        self.path = folder / "outputs" / output
        self.rows = 0
        self.lines = 0
        self.is_cut = False
        self.faults: list[str] = []
        self._damaged = 0
        self.is_there = self.path.is_file()
        self.footer_path = folder / "metrics" / metrics
        self.has_footer = self.footer_path.is_file()
        self.footer = self._read_footer() if self.has_footer else None

    def tables(self, most: int) -> Iterator[pa.Table]:
        """Yield the rows of the first `most` lines as tables of SCHEMA, in order."""
        try:
            yield from self._tables(most)
        except OSError as error:
            why = error.strerror or error
            self.faults.append(f"{self.path.name} cannot be read: {why}")
        more = self._damaged - _MOST_NAMED
        if more > 0:
            self.faults.append(
                f"{more:,} more lines of {self.path.name} are no results"
            )
        self._check_footer()

    def _tables(self, most: int) -> Iterator[pa.Table]:
        if most <= 0:
            self.is_cut = self.is_there
            return
        for block in self._blocks() if self.is_there else ():
            if self.lines >= most:
                self.is_cut = True
                return
            table = _parse(block, self._longest)
            if table is None:
                table = self._line_by_line(block)
            else:
                self.lines += table.num_rows
            if self.lines > most:
                self.is_cut = True
                table = table.slice(0, max(0, most - self.rows))
            self.rows += table.num_rows
            yield table

    def _line_by_line(self, block: bytes) -> pa.Table:
        rows: list[dict[str, Any]] = []
        *whole, rest = block.split(b"\n")
        first = self.lines + 1
        self.lines += len(whole)
        for at, line in enumerate([*whole, rest], first):
            if not line.strip():
                continue
            try:
                rows.append(self._row_of(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._note_damage(at, error, is_last=at == first + len(whole))
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def _row_of(self, line: bytes) -> dict[str, Any]:
        if len(line) > self._longest:
            raise msgspec.DecodeError(f"it has more than {self._longest:,} bytes")
        return msgspec.structs.asdict(_decode_row(line))

    def _note_damage(self, at: int, error: Exception, *, is_last: bool) -> None:
        """Say that a line is left out; many are only counted."""
        self._damaged += 1
        if self._damaged > _MOST_NAMED:
            return
        if is_last:
            fault = (
                f"the last line of {self.path.name} (line {at}) is cut off and left out"
            )
        else:
            fault = f"line {at} of {self.path.name} is no result and left out: {error}"
        self.faults.append(fault)

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


def _parse(block: bytes, longest: int) -> pa.Table | None:
    """The table of a sound block; None where a line may be damaged or too long.

    pyarrow crashes on a line `null` and takes some that are no objects, so it is given
    only lines in braces.
    """
    lines = _braced_lines(block, longest)
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


def _braced_lines(block: bytes, longest: int) -> int:
    """How many lines there are, if each is whole, in braces and no longer; else 0."""
    letters = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(letters == ord("\n"))
    if not block.startswith(b"{") or not len(ends) or ends[-1] != len(letters) - 1:
        return 0
    if np.diff(ends, prepend=-1).max() > longest:
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
