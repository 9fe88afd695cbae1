"""embed_768: texts as vectors of 768 numbers. Needs `gpuyard[embed]`
(sentence-transformers).

Arguments: `text` (one or a list of them), or `path` of a text file; `model` (default
sentence-transformers/all-mpnet-base-v2) is a name or a folder of a model that gives 768
numbers.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DIMENSIONS = 768
_DEFAULT = "sentence-transformers/all-mpnet-base-v2"


def load(args: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Load the model; ValueError when its vectors have another length."""
    from sentence_transformers import SentenceTransformer

    source = str(args.get("model", _DEFAULT))
    model: Any = SentenceTransformer(source)
    length = model.encode(["a"]).shape[1]
    if length != DIMENSIONS:
        raise ValueError(
            f"{source} gives vectors of {length} numbers, not of {DIMENSIONS}"
        )

    def run(
        args: Mapping[str, Any], folder: Path, progress: Callable[[float], None]
    ) -> dict[str, Any]:
        del folder, progress  # the vectors are the output, and there in a moment
        given = args.get("text") or Path(str(args["path"])).read_text()
        vectors = model.encode([given] if isinstance(given, str) else list(given))
        return {"dimensions": DIMENSIONS, "embeddings": vectors.tolist()}

    return run
