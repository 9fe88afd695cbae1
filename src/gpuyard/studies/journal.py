"""Answers as they come, one JSON line each and synced, so that a run that is killed pays for none of them again."""

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
    """What an answer stands for: prompt, variant, model, and a digest of all that the answer depends on."""
    asked = [settings.base_url, settings.max_tokens, settings.temperature, row["prompt"]]
    # What was paid for before there was a choice of APIs stays paid for.
    asked += [settings.api] if settings.api != "chat" else []
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    return row["prompt_id"], row["variant"], settings.model, digest


class Journal:
    """The file of answers. One process holds it at a time; a line that a crash cut off does not count."""

    def __init__(self, path: Path) -> None:
        """RefusedError while another process writes to it; InvalidInputError where nobody may."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = path.open("a+", encoding="ascii", errors="replace")
        except OSError as error:
            fault = f"{path} cannot be written: {error.strerror}"
            raise InvalidInputError.of("study", fault, "let it be a file in a folder that you may write to") from None
        try:
            lock_exclusively(self._file)
        except BlockingIOError:
            self._file.close()
            raise RefusedError("Another baseline of this study is running.", "Wait for it, or stop it.") from None
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
            if isinstance(row, dict) and isinstance(cast(dict[str, Any], row).get("key"), list):
                yield cast(dict[str, Any], row)

    def get(self, key: Key) -> dict[str, Any] | None:
        """The last answer under a key."""
        return self._answers.get(key)

    def append(self, key: Key, answer: Mapping[str, Any]) -> None:
        """Keep an answer; it is on the disk when this returns. May be called from any thread.

        RefusedError when the disk takes no more.
        """
        row = {"key": list(key), **answer}
        with self._turn:
            try:
                self._file.write(json.dumps(row) + "\n")
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as error:
                what = f"An answer cannot be kept in {self._path}: {error.strerror}."
                raise RefusedError(what, "Make room; what was kept before is not asked for again.") from None
            self._answers[key] = row

    def close(self) -> None:
        """Let go of the file, and so of its lock."""
        # What could not be written was told when it was to be.
        with suppress(OSError):
            self._file.close()


def _key(row: Mapping[str, Any]) -> Key:
    return cast(Key, tuple(str(part) for part in row["key"]))
