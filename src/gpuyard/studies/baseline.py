"""The baseline: what the model at the endpoint answers to every prompt of a study.

Its columns are called `local_…`, as the document calls them, although the endpoint may
be far away: `source` says which host answered.
"""

# pandas and pyarrow have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import asyncio
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.studies.baseline_journal import (
    BaselineJournal,
    Key,
    key_of,
    repeated,
)
from gpuyard.studies.completions import (
    Completion,
    NoCompletionError,
    OpenAICompletionClient,
)
from gpuyard.studies.prompts import schema
from gpuyard.studies.rate_limiter import RequestClock
from gpuyard.studies.study import BaselineSection, Study
from gpuyard.studies.tables import frame_of, rows_of, write_table

if TYPE_CHECKING:
    from pandas import DataFrame

# Beside the prompts' columns.
ANSWER_COLUMNS = (
    "reason",
    "local_tokens",
    "local_model",
    "source",
    "local_api",
    "local_same",
    "local_prompt_tokens",
)
OK = "ok"
FAILED = "failed"
PENDING = "pending"
Row = dict[str, Any]


class LocalInferenceRunner:
    """Asks the endpoint for what the journal lacks.

    A run that was stopped at any moment goes on where it was.
    """

    def __init__(
        self,
        settings: BaselineSection,
        journal: Path,
        environment: Mapping[str, str] | None = None,
        clock: RequestClock | None = None,
    ) -> None:
        """Use the answers in the file `journal`.

        The API key is read from `environment` (by default the process's own) when the
        endpoint is first asked.
        """
        self.settings = settings
        self._path = journal
        self._clock = clock
        self._environment = os.environ if environment is None else environment

    @classmethod
    def of(cls, study: Study) -> "LocalInferenceRunner":
        """The runner of a study; InvalidInputError where it names no endpoint."""
        if study.baseline is None:
            remedy = "add [baseline] with base_url and model"
            raise InvalidInputError.of(
                "baseline", "is missing, so there is nothing to compare with", remedy
            )
        return cls(study.baseline, study.results / "baseline.jsonl")

    def run(self, frame: "DataFrame", override: bool = False) -> "DataFrame":
        """Return the frame with an answer or a reason in each row.

        With `override`, every prompt is asked again. A GpuyardError that concerns every
        prompt (key, model, quota) ends the run; the answers so far are kept.
        """
        rows = rows_of(frame)
        journal = BaselineJournal(self._path)
        try:
            todo = [
                (row, key)
                for row in rows
                for key in self._keys(row)
                if override or not _answered(journal, key)
            ]
            if todo:
                asyncio.run(self._ask_all(todo, journal))
            return self._joined(rows, journal)
        finally:
            journal.close()

    def attach_metrics(self, frame: "DataFrame") -> "DataFrame":
        """Add the journal's answers, latencies (ms) and token counts to the frame.

        Rows without an answer have the status `pending`.
        """
        journal = BaselineJournal(self._path)
        try:
            return self._joined(rows_of(frame), journal)
        finally:
            journal.close()

    @staticmethod
    def persist(frame: "DataFrame", path: Path) -> None:
        """Write the table to a Parquet file, whole or not at all."""
        write_table(frame, path)

    def _keys(self, row: Row) -> list[Key]:
        """Return the keys of all answers to a prompt, that of the first one first."""
        key = key_of(row, self.settings)
        further = range(2, self.settings.repeats + 1)
        return [key, *(repeated(key, number) for number in further)]

    async def _ask_all(
        self, todo: Sequence[tuple[Row, Key]], journal: BaselineJournal
    ) -> None:
        client = OpenAICompletionClient(self.settings, self._environment, self._clock)
        try:
            with _progress(len(todo)) as advance:
                async with asyncio.TaskGroup() as group:
                    for row, key in todo:
                        group.create_task(self._ask(client, row, key, journal, advance))
        except* GpuyardError as errors:
            raise errors.exceptions[0] from None
        finally:
            await client.close()

    async def _ask(
        self,
        client: OpenAICompletionClient,
        row: Row,
        key: Key,
        journal: BaselineJournal,
        advance: Callable[[], None],
    ) -> None:
        try:
            answer = _kept(
                await client.complete_prompt(row["prompt"], row["prompt_tokens"])
            )
        except NoCompletionError as error:
            answer = {"status": FAILED, "reason": str(error)}
        # What is being written when another prompt ends the run is written to its end.
        await asyncio.shield(asyncio.to_thread(journal.append, key, answer))
        advance()

    def _joined(self, rows: Sequence[Row], journal: BaselineJournal) -> "DataFrame":
        import pyarrow as pa

        types = schema()
        text = pa.string()
        kinds = (text, pa.int64(), text, text, text, pa.float64(), pa.int64())
        for name, kind in zip(ANSWER_COLUMNS, kinds, strict=True):
            types = types.append(pa.field(name, kind))
        return frame_of(
            [
                self._with_answer(row, [journal.get(key) for key in self._keys(row)])
                for row in rows
            ],
            types,
        )

    def _with_answer(self, row: Row, answers: Sequence[Row | None]) -> Row:
        found = answers[0] or {}
        return row | {
            "local_completion": found.get("text"),
            "local_latency_ms": found.get("latency_ms"),
            "status": found.get("status", PENDING),
            "reason": found.get("reason"),
            "local_tokens": found.get("tokens"),
            "local_model": found.get("answered_as"),
            "source": source_of(self.settings),
            "local_api": self.settings.api,
            "local_same": _share_of_same(answers),
            "local_prompt_tokens": found.get("prompt_tokens"),
        }


def source_of(settings: BaselineSection) -> str:
    """The host, and port where one is named, that answers."""
    return urlsplit(settings.base_url).netloc


def _share_of_same(answers: Sequence[Row | None]) -> float | None:
    """Return the share of further answers that are the first one again.

    None where there are none.
    """
    texts = [one["text"] for one in answers if one and one.get("status") == OK]
    if len(texts) < 2 or not answers[0] or answers[0].get("status") != OK:
        return None
    return sum(text == texts[0] for text in texts[1:]) / (len(texts) - 1)


def _answered(journal: BaselineJournal, key: Key) -> bool:
    return (journal.get(key) or {}).get("status") == OK


def _kept(answer: Completion) -> Row:
    return {
        "status": OK,
        "text": answer.text,
        "latency_ms": answer.latency_ms,
        "tokens": answer.tokens,
        "prompt_tokens": answer.prompt_tokens,
        "answered_as": answer.model,
        "finish_reason": answer.finish_reason,
    }


@contextmanager
def _progress(total: int) -> Generator[Callable[[], None]]:
    """A bar on stderr when that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("baseline"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("baseline", total=total)
        yield lambda: bar.advance(task)
