# pyright: basic, reportMissingImports=false
"""Read slices of a model's weights from safetensors files, and count the bytes."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import RunError


class CheckpointReader:
    """Reads this rank's slices of the tensors in a model folder.

    `bytes_read` counts what was read. `bytes_share` counts what an equal share would
    be: each tensor's bytes divided by the number of ranks that split it. What no split
    divides counts whole.
    """

    def __init__(self, folder: Path, part: int = 0, parts: int = 1) -> None:
        self.bytes_read = 0
        self.bytes_share = 0.0
        self._folder = folder
        self._part = part
        self._parts = parts
        self._files: dict[Path, Any] = {}
        self._homes = _homes(folder)

    def rows(self, name: str, *shape: int) -> Tensor:
        """Return this rank's rows of a tensor: `[shape[0] / parts, …]`."""
        return self._read(name, shape, 0)

    def columns(self, name: str, *shape: int) -> Tensor:
        """Return this rank's columns of a tensor: `[shape[0], shape[1] / parts]`."""
        return self._read(name, shape, 1)

    def whole(self, name: str, *shape: int) -> Tensor:
        """Return a whole tensor."""
        return self._read(name, shape, None)

    def undivided(self, name: str, *shape: int) -> Tensor:
        """Return a whole tensor of which each rank needs all."""
        tensor = self._read(name, shape, None)
        self.bytes_share += tensor.nbytes * (1 - 1 / self._parts)
        return tensor

    def _read(self, name: str, shape: tuple[int, ...], dimension: int | None) -> Tensor:
        path = self._homes.get(name)
        if path is None:
            raise RunError(f"the files of {self._folder} have no tensor {name}")
        try:
            view = self._file(path).get_slice(name)
            found = tuple(view.get_shape())
            if found != shape:
                raise RunError(
                    f"{name} in {path} has the shape {list(found)}, but config.json"
                    f" says {list(shape)}"
                )
            tensor = view[self._cut(shape, dimension)]
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path} cannot be read: {error}") from error
        self.bytes_read += tensor.nbytes
        self.bytes_share += (
            torch.Size(shape).numel() * tensor.element_size() / self._parts
        )
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
        """Close the files."""
        self._files.clear()


def _homes(folder: Path) -> dict[str, Path]:
    """Return which file holds which tensor.

    Raises `RunError` when the index or a file that it names is missing.
    """
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
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
