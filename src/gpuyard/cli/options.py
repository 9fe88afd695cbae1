"""Turns the options of a command into fields of a job."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.gpu_text import gpus_of

# The options that more than one command has.
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Give it this secret in a variable of that name; VARIABLE=NAME for"
        " another. See `gpuyard secret`.",
        autocompletion=suggest.secrets,
    ),
]
GpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        "-g",
        help="How many GPUs, or which: 2, A100:8, 4x80GB.",
        autocompletion=suggest.gpu_wishes,
    ),
]
GpuMemoryOption = Annotated[
    str | None,
    typer.Option(
        help="Each with at least so much memory, such as 16GB.",
        autocompletion=suggest.gpu_sizes,
    ),
]
GpuClassOption = Annotated[
    str | None,
    typer.Option(
        help="Each of this class, such as A100.", autocompletion=suggest.gpu_classes
    ),
]
CpusOption = Annotated[float | None, typer.Option(help="CPU cores; also the limit.")]
MemoryOption = Annotated[
    str | None, typer.Option(help="Memory, such as 8GB; also the limit.")
]
NodesOption = Annotated[
    int | None,
    typer.Option(help="So many machines at once; all figures are per machine."),
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        help="Run it in a container of this image; `auto`: chosen by its imports."
    ),
]
TierOption = Annotated[
    str | None,
    typer.Option(
        help="A named size instead; see `gpuyard tiers`.",
        autocompletion=suggest.tiers,
    ),
]
TimeoutOption = Annotated[
    str | None, typer.Option(help="End it after so long: 90s, 15m, 2h, or seconds.")
]
DeadlineOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="It should have ended by then: 8h from now, or '2026-12-01 18:00'.",
    ),
]
WorkdirOption = Annotated[
    Path | None, typer.Option(help="Where it runs; default: here.")
]
ProviderOption = Annotated[
    str | None,
    typer.Option(help="Only on this provider.", autocompletion=suggest.providers),
]
RegionOption = Annotated[
    list[str] | None,
    typer.Option(help="In clouds, only this region; repeat for more."),
]
QuarantinedOption = Annotated[
    bool,
    typer.Option(
        "--allow-quarantined",
        help="Also in places that are in quarantine; see `gpuyard trust`.",
    ),
]
WorkspaceOption = Annotated[
    str | None,
    typer.Option(
        help="A folder that outlives the job; see `gpuyard workspace`.",
        autocompletion=suggest.workspaces,
    ),
]
DatasetOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[PROJECT/]NAME[@VERSION]",
        help="Data that it reads: NAME, NAME@VERSION; in a container also with :/PATH."
        " Repeat it for more.",
    ),
]
PackagesOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|auto|none",
        help="First install what this file names: uv.lock, requirements.txt,"
        " pyproject.toml or environment.yml; auto: the one in its folder.",
    ),
]
MaxPriceOption = Annotated[
    str | None, typer.Option(help="In clouds, at most this price per hour.")
]
SpotOption = Annotated[
    bool,
    typer.Option("--spot", help="Use spot offers: cheaper, and may be taken back."),
]


def given(**values: Any) -> dict[str, Any]:
    """What was said, without what was left out."""
    return {name: value for name, value in values.items() if value is not None}


def secrets_of(words: Sequence[str]) -> dict[str, str]:
    """The secret of each variable; a bare NAME is both."""
    pairs: dict[str, str] = {}
    for word in words:
        variable, found, name = word.partition("=")
        pairs[variable] = name if found else variable
    return pairs


def pairs_of(option: str, words: Sequence[str], defaults: Any) -> dict[str, str]:
    """NAME=VALUE words as a mapping; a bare NAME takes its value from `defaults`."""
    pairs: dict[str, str] = {}
    for word in words:
        name, found, value = word.partition("=")
        if not found and name not in defaults:
            raise InvalidInputError.of(
                f"--{option}", f"{word!r} has no value", "write NAME=VALUE"
            )
        pairs[name] = value if found else defaults[name]
    return pairs


def deadline_of(text: str | None) -> float | None:
    """The moment (UTC seconds) that --deadline means. InvalidInputError."""
    from gpuyard.client.bodies import local_deadline

    return None if text is None else local_deadline(text, "--deadline")


def gpu_request(gpus: str | None, kind: dict[str, Any]) -> dict[str, Any]:
    """What `--gpus` and the options about their kind say together; nothing without
    any.
    """
    if gpus is None:
        return kind | {"count": 1} if kind else {}
    said = gpus_of(gpus)
    if twice := said.keys() & kind.keys():
        option = "--gpu-memory" if "memory_gb" in twice else "--gpu-class"
        fault = f"{gpus!r} says what {option} says, too"
        raise InvalidInputError.of("--gpus", fault, "say it once")
    return said | kind


def words_of(option: str, text: str | None) -> list[str] | None:
    """The words of an option's text, as a shell reads them."""
    try:
        return shlex.split(text) if text else None
    except ValueError as error:
        fault = f"{text!r} is no list of words: {error}"
        raise InvalidInputError.of(option, fault, "close each quote") from None
