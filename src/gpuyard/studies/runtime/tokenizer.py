# pyright: basic, reportMissingImports=false
"""The model's own tokenizer."""

from pathlib import Path
from typing import Any

from .errors import RunError


class ModelTokenizer:
    """Converts text to ids and back, by `tokenizer.json` or else by transformers.

    The file is preferred because the study counts tokens with it, and because
    transformers 5 chooses a class by the model's type and may ignore rules of the file.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        try:
            self._encode, self._decode = (
                _from_file(path) if path.exists() else _from_transformers(folder)
            )
        except Exception as error:
            raise RunError(
                f"the tokenizer of {folder} cannot be read: {error}"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return ids, with the special tokens that the model expects in front."""
        return list(self._encode(text))

    def decode(self, ids: list[int]) -> str:
        """Text, without special tokens."""
        return str(self._decode(ids))


def _from_file(path: Path) -> tuple[Any, Any]:
    from tokenizers import Tokenizer as FastTokenizer

    fast = FastTokenizer.from_file(str(path))
    fast.no_truncation()
    fast.no_padding()

    def encode(text: str) -> list[int]:
        return fast.encode(text).ids

    return encode, fast.decode


def _from_transformers(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True)

    return tokenizer.encode, decode
