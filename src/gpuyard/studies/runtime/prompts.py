"""Read prompts, split them over replicas, tokenize them and form batches."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import RunError
from .experiment import Experiment
from .launch import Mesh


@dataclass(frozen=True)
class Prompt:
    """One prompt; `token_ids` as the model's own tokenizer makes them."""

    prompt_id: str
    variant: str
    token_ids: tuple[int, ...]


def prepare_prompt_shard(
    experiment: Experiment, mesh: Mesh, encode: Callable[[str], list[int]]
) -> list[Prompt]:
    """Return the prompts of this replica: every `dp_size`-th prompt of each variant.

    Raises `RunError` when a variant has no prompts, or a prompt has no tokens.
    """
    chosen: list[dict[str, Any]] = []
    rows = read_rows(experiment.prompt_df_path)
    for variant in experiment.variants or tuple(
        dict.fromkeys(row["variant"] for row in rows)
    ):
        matching = [row for row in rows if row["variant"] == variant][
            : experiment.limit
        ]
        if not matching:
            raise RunError(
                f"{experiment.prompt_df_path} has no prompt of the variant {variant!r}"
            )
        chosen += matching[mesh.dp_rank :: mesh.dp_size]
    prompts = [
        Prompt(row["prompt_id"], row["variant"], tuple(encode(row["prompt"])))
        for row in chosen
    ]
    for prompt in prompts:
        if not prompt.token_ids:
            raise RunError(
                f"prompt {prompt.prompt_id} ({prompt.variant}) has no tokens"
            )
    return prompts


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the prompts from the JSON lines beside the table, or else from the table.

    Each row has `prompt_id`, `variant` and `prompt`.
    """
    lines = path.with_suffix(".jsonl")
    try:
        rows = _of_lines(lines) if lines.exists() else _of_table(path)
    except (OSError, ValueError) as error:
        raise RunError(f"the prompts cannot be read from {path}: {error}") from error
    for row in rows:
        missing = {"prompt_id", "variant", "prompt"} - row.keys()
        if missing:
            raise RunError(f"a prompt of {path} has no {', '.join(sorted(missing))}")
    return rows


def _of_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def _of_table(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import (
            parquet,
        )  # pyright: ignore  # it may be missing where this runs
    except ImportError as error:
        lines = path.with_suffix(".jsonl").name
        raise RunError(
            f"{path} needs pyarrow, or the same rows beside it in {lines}"
        ) from error
    return parquet.read_table(path).to_pylist()  # pyright: ignore


def batches_of(prompts: list[Prompt], size: int) -> Iterator[list[Prompt]]:
    """Batches of at most `size` prompts, each of one variant."""
    for variant in dict.fromkeys(prompt.variant for prompt in prompts):
        same = [prompt for prompt in prompts if prompt.variant == variant]
        for start in range(0, len(same), size):
            yield same[start : start + size]


def rotate(prompts: list[Prompt], places: int) -> list[Prompt]:
    """Begin each variant with another prompt, so that batches change."""
    turned: list[Prompt] = []
    for variant in dict.fromkeys(prompt.variant for prompt in prompts):
        same = [prompt for prompt in prompts if prompt.variant == variant]
        first = places % len(same)
        turned += same[first:] + same[:first]
    return turned
