"""embed_1536: texts as vectors of 1536 numbers, from OpenAI's API or one like it. Needs
no GPU and no package.

Arguments: `text` (one or a list of them), or `path` of a text file; `model` (default
text-embedding-3-small). The environment gives OPENAI_API_KEY, and OPENAI_BASE_URL where
the server is another (default: OpenAI's).
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

DIMENSIONS = 1536
_AT_ONCE = 256
_ANSWER_S = 120


def load(args: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Look that there is a key."""
    del args
    url = (
        os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1").rstrip("/")
        + "/embeddings"
    )
    key = os.environ.get("OPENAI_API_KEY")
    if not key:
        raise ValueError(
            "OPENAI_API_KEY is not set in the job's environment; submit with --env"
            " OPENAI_API_KEY"
        )

    def run(
        args: Mapping[str, Any], folder: Path, progress: Callable[[float], None]
    ) -> dict[str, Any]:
        del folder  # the vectors are the output
        given = args.get("text") or Path(str(args["path"])).read_text()
        texts = [given] if isinstance(given, str) else list(given)
        vectors: list[Any] = []
        for start in range(0, len(texts), _AT_ONCE):
            model = str(args.get("model", "text-embedding-3-small"))
            vectors += _embed(
                url, key, {"model": model, "input": texts[start : start + _AT_ONCE]}
            )
            progress(len(vectors) / len(texts))
        return {"dimensions": DIMENSIONS, "embeddings": vectors}

    return run


def _embed(url: str, key: str, body: dict[str, Any]) -> list[Any]:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with urlopen(
            Request(url, json.dumps(body).encode(), headers), timeout=_ANSWER_S
        ) as answer:
            vectors = [entry["embedding"] for entry in json.load(answer)["data"]]
    except HTTPError as error:
        raise ValueError(
            f"{url} answered {error.code}: {error.read(500).decode(errors='replace')}"
        ) from None
    for vector in vectors:
        if len(vector) != DIMENSIONS:
            raise ValueError(
                f"{body['model']} gives vectors of {len(vector)} numbers, not of"
                f" {DIMENSIONS}"
            )
    return vectors
