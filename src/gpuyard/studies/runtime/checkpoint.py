# pyright: basic, reportMissingImports=false
"""The weights of a model on disk: slices of tensors out of safetensors files, and how many bytes that took."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import RunError


class Checkpoint:
    """A model folder, read by slices.

    `bytes_read` counts what was read; `bytes_share` what a fair share of the same tensors would be: each one's bytes
    over the number of ranks that split them."""

    def __init__(self, folder: Path, part: int = 0, parts: int = 1) -> None:
        self.bytes_read = 0
        self.bytes_share = 0.0
        self._folder, self._part, self._parts = folder, part, parts
        self._files: dict[Path, Any] = {}
        self._homes = _homes(folder)

    def rows(self, name: str, *shape: int) -> Tensor:
        """This rank's rows of a tensor that has `shape` in all: `[shape[0] / parts, …]`."""
        return self._read(name, shape, 0)

    def columns(self, name: str, *shape: int) -> Tensor:
        """This rank's columns of it: `[shape[0], shape[1] / parts]`."""
        return self._read(name, shape, 1)

    def whole(self, name: str, *shape: int) -> Tensor:
        """All of it."""
        return self._read(name, shape, None)

    def _read(self, name: str, shape: tuple[int, ...], dimension: int | None) -> Tensor:
        path = self._homes.get(name)
        if path is None:
            raise RunError(f"the files of {self._folder} have no tensor {name}")
        try:
            view = self._file(path).get_slice(name)
            found = tuple(view.get_shape())
            if found != shape:
                raise RunError(f"{name} in {path} has the shape {list(found)}, but config.json says {list(shape)}")
            tensor = view[self._cut(shape, dimension)]
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path} cannot be read: {error}") from error
        self.bytes_read += tensor.nbytes
        self.bytes_share += torch.Size(shape).numel() * tensor.element_size() / self._parts
        return tensor

    def _cut(self, shape: tuple[int, ...], dimension: int | None) -> Any:
        if dimension is None:
            return slice(None)
        size = shape[dimension] // self._parts
        mine = slice(self._part * size, (self._part + 1) * size)
        return mine if dimension == 0 else (slice(None), mine)

    def _file(self, path: Path) -> Any:
        if path not in self._files:
            self._files[path] = safe_open(path, framework="pt", device="cpu")
        return self._files[path]

    def close(self) -> None:
        """Let go of the files."""
        self._files.clear()


def _homes(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor. Raises `RunError` when the index or a file that it names is missing."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    try:
        if index.exists():
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        elif single.exists():
            with safe_open(single, framework="pt", device="cpu") as file:
                names = dict.fromkeys(file.keys(), single.name)
        else:
            raise RunError(f"{folder} has neither {single.name} nor {index.name}")
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(f"the weights of {folder} cannot be read: {error}") from error
    missing = sorted({file for file in names.values() if not (folder / file).exists()})
    if missing:
        raise RunError(f"{folder} lacks {', '.join(missing)}, which {index.name} names")
    return {name: folder / file for name, file in names.items()}
