"""What gpuyard itself stores in the `provider_options` of jobs of its own kinds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """Where the server of a model runs: its port, and the UUIDs of its GPUs. `joined`:
    these may be of a machine that has joined.
    """

    port: int
    gpus: tuple[str, ...]
    joined: bool = False

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> "ModelPlace":
        """The place of a model's job. Jobs of older versions have the single key
        `gpu`.
        """
        gpus = tuple(options.get("gpus") or [options["gpu"]])
        return cls(options["port"], gpus, options.get("joined", False))

    def to_options(self) -> dict[str, Any]:
        """As it is stored."""
        options: dict[str, Any] = {"port": self.port, "gpus": list(self.gpus)}
        if self.joined:
            options["joined"] = True
        return options


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """How a worker runs its script: `settings` are some fields of its `ScriptSpec`.

    Only the worker of a batch has a `batch`, a folder for `results` and perhaps a `gpu`
    of its own.
    """

    settings: Mapping[str, Any]
    batch: str = ""
    results: str = ""
    gpu: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> "WorkerOrder":
        """The order of a job; without settings if it runs no script."""
        settings = dict(options.get("script", {}))
        batch = settings.pop("batch", "")
        results = settings.pop("results", "")
        return cls(settings, batch, results, settings.pop("gpu", None))

    @property
    def joined(self) -> bool:
        """Whether its script may run on machines that have joined."""
        return self.settings.get("joined") is True

    @property
    def fields(self) -> dict[str, Any]:
        """What the worker reads, and what is stored."""
        if not self.batch:
            return dict(self.settings)
        own = {"batch": self.batch, "results": self.results, "gpu": self.gpu}
        return {**self.settings, **own}

    def to_options(self) -> dict[str, Any]:
        """As it is stored."""
        return {"script": self.fields}
