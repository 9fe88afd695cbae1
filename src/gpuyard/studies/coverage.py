"""Check that a strategy has answered each prompt of a run exactly once."""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpuyard.domain.errors import InvalidInputError

_NAMED = 5
"""How many things a reason names; the others are counted."""
_BETWEEN = "\x1f"


def named(names: Sequence[str]) -> str:
    """The first few of many names."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class RunPrompts:
    """The prompts of a run.

    `joined` are the columns that go into the results, `tokens` the lengths of the
    prompts (null: unknown). `rows` finds a prompt's row by its key, and `variants` is
    each row's variant.
    """

    joined: pa.Table
    tokens: pa.Array
    rows: dict[str, int]
    variants: pa.ChunkedArray

    @classmethod
    def read(cls, path: Path) -> "RunPrompts":
        """From `prompts.parquet`.

        InvalidInputError where it cannot be read or has a prompt twice.
        """
        try:
            table = _plain(pq.read_table(path))
        except (OSError, pa.ArrowException) as error:
            raise InvalidInputError.of(
                str(path), f"cannot be read: {error}", "start the run anew"
            ) from None
        absent = {"prompt_id", "variant"} - set(table.column_names)
        if absent:
            raise InvalidInputError.of(
                str(path),
                f"has no column {', '.join(sorted(absent))}",
                "start the run anew",
            )
        keys = _keys(table)
        rows = dict(zip(keys, range(len(keys)), strict=True))
        if len(rows) != len(keys):
            raise InvalidInputError.of(
                str(path),
                "has a prompt twice",
                "give each prompt of a variant its own id",
            )
        known = "prompt_tokens" in table.column_names
        tokens = (
            table["prompt_tokens"].cast(pa.int64())
            if known
            else pa.chunked_array([pa.nulls(len(rows), pa.int64())])
        )
        joined = table.drop_columns(["prompt_tokens"]) if known else table
        if "status" in table.column_names:
            joined = joined.rename_columns({"status": "local_status"})
        return cls(
            joined.combine_chunks(), tokens.combine_chunks(), rows, table["variant"]
        )

    def asked(self, variants: object, limit: object) -> np.ndarray:
        """Mark the rows that a strategy must answer.

        These are the first `limit` prompts of each of `variants` (all variants, unless
        a list).
        """
        names = np.asarray(self.variants.to_pylist(), dtype=object)
        asked = (
            np.isin(names, variants)
            if isinstance(variants, list | tuple)
            else np.ones(len(names), bool)
        )
        if isinstance(limit, int) and not isinstance(limit, bool):
            for variant in set(names):
                asked[np.flatnonzero(names == variant)[limit:]] = False
        return asked

    def names(self, rows: Iterable[int]) -> list[str]:
        """Return names of prompts for people, such as p01/2k."""
        some = (
            self.joined.select(["prompt_id", "variant"])
            .take(pa.array(list(rows), pa.int64()))
            .to_pylist()
        )
        return [f"{prompt['prompt_id']}/{prompt['variant']}" for prompt in some]


class Coverage:
    """Accepts the first result of each prompt, and counts what it leaves out."""

    def __init__(self, prompts: RunPrompts, variants: object, limit: object) -> None:
        self._prompts = prompts
        self._asked = prompts.asked(variants, limit)
        self._seen = np.zeros(len(prompts.rows), bool)
        self._twice: list[int] = []
        self._unknown: list[str] = []
        self._foreign: dict[str, int] = {}

    @property
    def expected(self) -> int:
        """How many results there should be."""
        return int(self._asked.sum())

    def admit(self, table: pa.Table, strategy_id: str) -> tuple[pa.Array, pa.Table]:
        """Return the accepted rows of `table`, and the row numbers of their prompts."""
        table = self._own(table, strategy_id)
        keys = _keys(table)
        find = self._prompts.rows
        rows = np.fromiter(map(find.get, keys, repeat(-1)), np.int64, len(keys))
        first = np.zeros(len(rows), bool)
        first[np.unique(rows, return_index=True)[1]] = True
        known = rows >= 0
        fresh = known & first
        fresh[known] &= ~self._seen[rows[known]]
        self._seen[rows[fresh]] = True
        if not fresh.all():
            self._twice += rows[known & ~fresh].tolist()
            self._unknown += [_name(keys[at]) for at in np.flatnonzero(~known)]
            table = table.filter(pa.array(fresh))
        return pa.array(rows[fresh]), table

    def missing(self) -> pa.Array:
        """The rows of the prompts that were asked and have no result."""
        return pa.array(np.flatnonzero(self._asked & ~self._seen))

    def reasons(self) -> Iterator[str]:
        """What is wrong, in words."""
        missing = self._prompts.names(
            np.flatnonzero(self._asked & ~self._seen).tolist()
        )
        if missing:
            yield (
                f"{len(missing)} of {self.expected} prompts have no result:"
                f" {named(missing)}"
            )
        if not self.expected:
            yield "its variants have no prompts"
        if self._twice:
            names = list(dict.fromkeys(self._prompts.names(self._twice)))
            yield (
                f"{len(self._twice)} results are there twice, and the first counts:"
                f" {named(names)}"
            )
        if self._unknown:
            yield (
                f"{len(self._unknown)} results are of no prompt of this run, and left"
                f" out: {named(self._unknown)}"
            )
        for owner, count in self._foreign.items():
            yield (
                f"{count} results are of the strategy {owner}, and left out: two runs"
                " in one folder"
            )

    def _own(self, table: pa.Table, strategy_id: str) -> pa.Table:
        own = pc.equal(pc.coalesce(table["strategy_id"], strategy_id), strategy_id)
        if pc.all(own).as_py() is False:
            for owner in table["strategy_id"].filter(pc.invert(own)).to_pylist():
                self._foreign[owner] = self._foreign.get(owner, 0) + 1
            return table.filter(own)
        return table


def _plain(table: pa.Table) -> pa.Table:
    """Convert pandas' `large_string` to `string`, which every function takes."""
    types = [
        pa.string() if kind == pa.large_string() else kind
        for kind in table.schema.types
    ]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))


def _keys(table: pa.Table) -> list[str]:
    return pc.binary_join_element_wise(
        table["variant"], table["prompt_id"], _BETWEEN
    ).to_pylist()


def _name(key: str) -> str:
    variant, _, prompt_id = key.partition(_BETWEEN)
    return f"{prompt_id}/{variant}"
