"""A file of answers: one JSON line each, synced at once.

A run that is killed never pays twice for an answer.
"""

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from gpuyard.config.locks import lock_exclusively
from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.studies.study import BaselineSection

Key = tuple[str, str, str, str]


def key_of(row: Mapping[str, Any], settings: BaselineSection) -> Key:
    """Return what identifies an answer: prompt, variant, model, digest of inputs."""
    asked = [
        settings.base_url,
        settings.max_tokens,
        settings.temperature,
        row["prompt"],
    ]
    # What was paid for before there was a choice of APIs stays paid for.
    asked += [settings.api] if settings.api != "chat" else []
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    return row["prompt_id"], row["variant"], settings.model, digest


def repeated(key: Key, number: int) -> Key:
    """The key of a further answer to the same question; `number` counts from 2."""
    prompt_id, variant, model, digest = key
    return prompt_id, variant, model, f"{digest}#{number}"


class BaselineJournal:
    """The file of answers, which one process holds at a time.

    A line that a crash cut off is ignored.
    """

    def __init__(self, path: Path) -> None:
        """Open and lock the file.

        RefusedError while another process holds it; InvalidInputError when it cannot be
        written.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = path.open("a+", encoding="ascii", errors="replace")
        except OSError as error:
            fault = f"{path} cannot be written: {error.strerror}"
            raise InvalidInputError.of(
                "study", fault, "let it be a file in a folder that you may write to"
            ) from None
        try:
            lock_exclusively(self._file)
        except BlockingIOError:
            self._file.close()
            raise RefusedError(
                "Another baseline of this study is running.", "Wait for it, or stop it."
            ) from None
        self._turn = threading.Lock()
        self._answers = {_key(row): row for row in self._read()}

    def _read(self) -> Iterator[dict[str, Any]]:
        self._file.seek(0)
        text = self._file.read()
        if text and not text.endswith("\n"):
            self._file.write("\n")
        for line in text.split("\n"):
            try:
                row: Any = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(
                cast(dict[str, Any], row).get("key"), list
            ):
                yield cast(dict[str, Any], row)

    def get(self, key: Key) -> dict[str, Any] | None:
        """The last answer under a key."""
        return self._answers.get(key)

    def append(self, key: Key, answer: Mapping[str, Any]) -> None:
        """Write an answer to the disk; any thread may call this.

        RefusedError when the disk is full.
        """
        row = {"key": list(key), **answer}
        with self._turn:
            try:
                self._file.write(json.dumps(row) + "\n")
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as error:
                what = f"An answer cannot be kept in {self._path}: {error.strerror}."
                raise RefusedError(
                    what, "Make room; what was kept before is not asked for again."
                ) from None
            self._answers[key] = row

    def close(self) -> None:
        """Close the file, which releases its lock."""
        # What could not be written was told when it was to be.
        with suppress(OSError):
            self._file.close()


def _key(row: Mapping[str, Any]) -> Key:
    return cast(Key, tuple(str(part) for part in row["key"]))
