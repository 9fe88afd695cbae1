"""Read and check the prompts of a study, and build the table of prompts."""

# pandas and pyarrow have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.domain.errors import Fault, InvalidInputError, NotFoundError, quoted
from gpuyard.studies.study import BUDGETS, VARIANTS, Study, Variant
from gpuyard.studies.tables import (
    frame_of,
    read_table,
    replace_file,
    rows_of,
    write_table,
)

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = (
    "prompt_id",
    "variant",
    "prompt",
    "token_budget",
    "source_file",
    "local_completion",
    "local_latency_ms",
    "status",
    "prompt_tokens",
)
PENDING = "pending"
OFF_BUDGET = 0.1
# A line `---` begins the next prompt; it may name it: `--- p07`.
_SEPARATOR = re.compile(r"^---(?:[ \t]+(\S+))?[ \t]*$", re.MULTILINE)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One prompt.

    `token_budget` is the number of tokens it is meant to have; `prompt_id` is shared by
    variants.
    """

    prompt_id: str
    variant: Variant
    prompt: str
    token_budget: int
    source_file: str = ""


@dataclass(frozen=True)
class PromptFileSet:
    """The files `prompts_2k.txt` and `prompts_4k.txt`, each with `count` prompts."""

    folder: Path
    budgets: Mapping[Variant, int] | None = None
    count: int = 20

    @classmethod
    def of(cls, study: Study) -> "PromptFileSet":
        """The files of a study."""
        return cls(study.prompts.folder, study.prompts.budgets, study.prompts.count)

    def path(self, variant: Variant) -> Path:
        """The file of a variant."""
        return self.folder / f"prompts_{variant}.txt"

    def validate(self) -> None:
        """Check both files; InvalidInputError lists every fault.

        The ids of both files must be the same.
        """
        faults: list[Fault] = []
        found: dict[Variant, list[str]] = {}
        for variant in VARIANTS:
            try:
                found[variant] = [name for name, _ in self._read(variant)]
            except InvalidInputError as error:
                faults += error.faults
        if not faults and found["2k"] != found["4k"]:
            pairs = enumerate(zip(found["2k"], found["4k"], strict=True), 1)
            place, (one, other) = next(
                (place, pair) for place, pair in pairs if pair[0] != pair[1]
            )
            fault = (
                f"prompt {place} is {one} in {self.path('2k').name} and {other} in"
                f" {self.path('4k').name}"
            )
            faults.append(
                Fault(
                    "prompts",
                    fault,
                    "give the prompts of both files the same ids in the same order",
                )
            )
        if faults:
            raise InvalidInputError(faults)

    def iter_records(self) -> Iterator[PromptRecord]:
        """Yield every checked prompt: all of the first variant, then the second."""
        self.validate()
        for variant in VARIANTS:
            budget = (self.budgets or BUDGETS)[variant]
            for prompt_id, prompt in self._read(variant):
                yield PromptRecord(
                    prompt_id, variant, prompt, budget, self.path(variant).name
                )

    def _read(self, variant: Variant) -> list[tuple[str, str]]:
        path = self.path(variant)
        found = split_prompts(read_text(path, f"prompts.{variant}"))
        if len(found) != self.count:
            fault = (
                f"{path} holds"
                f" {len(found)} {'prompt' if len(found) == 1 else 'prompts'}, and not"
                f" {self.count}"
            )
            remedy = (
                "separate prompts by a line ---"
                if len(found) < self.count
                else "indent a line --- within a prompt"
            )
            remedy += f", or set prompts.count = {len(found)}" if found else ""
            raise InvalidInputError.of(f"prompts.{variant}", fault, remedy)
        faults = [Fault(f"prompts.{variant}", *words) for words in _faults(path, found)]
        if faults:
            raise InvalidInputError(faults)
        return found


def read_text(path: Path, field: str) -> str:
    """Read a UTF-8 file with `\n` as line end; InvalidInputError names a wrong byte."""
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        raise InvalidInputError.of(
            field, f"there is no file {path}", "write it, or correct the path"
        ) from None
    except UnicodeDecodeError as error:
        where = (
            f"{path} is not UTF-8 at byte"
            f" {error.start} (0x{error.object[error.start]:02x})"
        )
        raise InvalidInputError.of(
            field, where, "save it as UTF-8, e.g. with iconv -t UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        fault = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InvalidInputError.of(
            field, fault, "make it readable, or correct the path"
        ) from None


def split_prompts(text: str) -> list[tuple[str, str]]:
    """(id, prompt) of a file's text, without the blank lines around a prompt.

    A separator before the first prompt or after the last one is allowed.
    """
    pieces = _SEPARATOR.split(text)
    prompts = pieces[::2]
    names = [None, *pieces[1::2]]
    found = [
        (name, prompt.strip("\n")) for name, prompt in zip(names, prompts, strict=True)
    ]
    if len(found) > 1 and not found[0][1].strip():
        found.pop(0)
    if found and not found[-1][1].strip() and found[-1][0] is None:
        found.pop()
    return [
        (name or f"p{place:02d}", prompt)
        for place, (name, prompt) in enumerate(found, 1)
    ]


def _faults(path: Path, found: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What is wrong with single prompts, as fault and remedy."""
    places: dict[str, int] = {}
    for place, (name, prompt) in enumerate(found, 1):
        if not _ID.fullmatch(name):
            yield (
                f"{path} calls prompt {place} {quoted(name)}, which is no id",
                "use letters, digits, _, . and -",
            )
        elif places.setdefault(name, place) != place:
            yield (
                f"{path} gives the id {name} to prompts {places[name]} and {place}",
                "give each an id of its own",
            )
        if not prompt.strip():
            yield (
                f"{path} has an empty prompt {name}",
                "write the prompt, or remove its separator",
            )


class PromptRepository:
    """The prompts of a file set, read once."""

    def __init__(self, files: PromptFileSet) -> None:
        self.files = files

    @cached_property
    def _records(self) -> tuple[PromptRecord, ...]:
        return tuple(self.files.iter_records())

    def load_all(
        self, variants: Sequence[Variant] = VARIANTS, limit: int | None = None
    ) -> tuple[PromptRecord, ...]:
        """Return the first `limit` prompts of each variant, in the files' order."""
        kept: list[PromptRecord] = []
        for variant in VARIANTS:
            if variant in variants:
                group = [one for one in self._records if one.variant == variant]
                kept += group[:limit]
        return tuple(kept)

    def get_by_id(self, prompt_id: str, variant: Variant = "2k") -> PromptRecord:
        """One prompt; NotFoundError for an id there is not."""
        for record in self._records:
            if (record.prompt_id, record.variant) == (prompt_id, variant):
                return record
        raise NotFoundError(f"There is no prompt {prompt_id!r} of variant {variant}.")


class TokenCounter:
    """Counts tokens with the model's own tokenizer, including special tokens."""

    def __init__(self, path: Path) -> None:
        """`path` is a `tokenizer.json`; InvalidInputError when it is none."""
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001  the library raises bare Exceptions
            raise InvalidInputError.of(
                "model.path", f"{path} is no tokenizer: {error}", "fetch it again"
            ) from None
        # As the runtime does: a file may say to cut texts off, or to fill them up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @classmethod
    def of(cls, study: Study) -> "TokenCounter | None":
        """Return the counter of the study's model, or None when it has no tokenizer."""
        path = study.model.path / "tokenizer.json"
        return cls(path) if path.is_file() else None

    def __call__(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)


class PromptDataFrameBuilder:
    """Builds the table of prompts: one row for each prompt and variant."""

    def __init__(
        self, repository: PromptRepository, count_tokens: TokenCounter | None = None
    ) -> None:
        self.repository = repository
        self.count_tokens = count_tokens

    def build(
        self, variants: Sequence[Variant] = VARIANTS, limit: int | None = None
    ) -> "DataFrame":
        """A frame of `COLUMNS`; `prompt_tokens` is empty without a tokenizer."""
        rows = [
            self._row(record) for record in self.repository.load_all(variants, limit)
        ]
        return frame_of(rows, schema())

    def _row(self, record: PromptRecord) -> dict[str, Any]:
        tokens = self.count_tokens(record.prompt) if self.count_tokens else None
        return {
            "prompt_id": record.prompt_id,
            "variant": record.variant,
            "prompt": record.prompt,
            "token_budget": record.token_budget,
            "source_file": record.source_file,
            "local_completion": None,
            "local_latency_ms": None,
            "status": PENDING,
            "prompt_tokens": tokens,
        }

    @staticmethod
    def persist(frame: "DataFrame", path: Path) -> None:
        """Write the table as a Parquet file, and its rows as JSON lines beside it."""
        write_table(frame, path)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of(frame)]
        replace_file(path.with_suffix(".jsonl"), "".join(lines).encode())

    @staticmethod
    def read(path: Path) -> "DataFrame":
        """A table as it was persisted, in the same order."""
        return read_table(path)


def schema() -> Any:
    """The types of `COLUMNS`, which columns without a value keep as well."""
    import pyarrow as pa

    text = pa.string()
    whole = pa.int64()
    types = (text, text, text, whole, text, text, pa.float64(), text, whole)
    return pa.schema(list(zip(COLUMNS, types, strict=True)))


def budget_warnings(
    records: Iterable[PromptRecord], count_tokens: TokenCounter
) -> Iterator[str]:
    """A line for each prompt whose tokens are more than 10 % off its budget."""
    for record in records:
        tokens = count_tokens(record.prompt)
        budget = record.token_budget
        if abs(tokens - budget) > OFF_BUDGET * budget:
            off = round(100 * (tokens - budget) / budget)
            yield (
                f"{record.prompt_id} of {record.variant} has {tokens} tokens,"
                f" {off:+d} % off its budget of {budget}"
            )
