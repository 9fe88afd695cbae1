"""Find results of a strategy whose figures cannot be."""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

_ROUNDING_MS = 0.01
_ROUNDING_NATS = 0.01


class Plausibility:
    """Counts results whose figures cannot be, by what is wrong with them.

    `most_tokens` is what the job was asked for at most; None if it is not known.
    """

    def __init__(self, most_tokens: int | None) -> None:
        self._most_tokens = most_tokens
        self._counts: dict[str, int] = {}

    def look_at(self, rows: pa.Table, prompt_tokens: pa.Array) -> None:
        """Look at results, a table of `shards.SCHEMA`.

        `prompt_tokens` are those of each result's prompt; null if they are not known.
        """
        self._note(
            "state another number of tokens of their prompts than the study's"
            " tokenizer makes",
            pc.not_equal(rows["prompt_tokens"], prompt_tokens),
        )
        count = rows["tokens_generated"]
        self._note("state fewer than no tokens", pc.less(count, 0))
        if self._most_tokens is not None:
            most = f"state more tokens than the {self._most_tokens} that were asked for"
            self._note(most, pc.greater(count, self._most_tokens))
        listed = pc.list_value_length(rows["token_ids"])
        self._note(
            "state another number of tokens than they list",
            pc.not_equal(listed, pc.cast(count, pa.int32(), safe=False)),
        )
        latency = rows["latency_ms"]
        first = rows["ttft_ms"]
        self._note("took less than no time", pc.less(latency, 0))
        self._note("have a first token before they began", pc.less(first, 0))
        self._note(
            "have their first token after their last one",
            pc.greater(first, pc.add(latency, _ROUNDING_MS)),
        )
        self._note_logprobs(rows)

    def reasons(self) -> Iterator[str]:
        """What was found, in words."""
        for fault, count in self._counts.items():
            yield f"{count} results {fault}"

    def _note_logprobs(self, rows: pa.Table) -> None:
        sure = pc.list_flatten(rows["logprobs"])
        most = pc.max(sure).as_py()
        if most is not None and most > _ROUNDING_NATS:
            owners = pc.list_parent_indices(rows["logprobs"])
            wrong = owners.filter(pc.greater(sure, _ROUNDING_NATS))
            fault = "have tokens that are more than certain"
            count = len(pc.unique(wrong))
            self._counts[fault] = self._counts.get(fault, 0) + count

    def _note(self, fault: str, is_wrong: pa.ChunkedArray) -> None:
        count = pc.sum(is_wrong).as_py() or 0
        if count:
            self._counts[fault] = self._counts.get(fault, 0) + count
