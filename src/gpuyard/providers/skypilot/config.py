"""What `[providers.skypilot]` may say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import field_validator

from gpuyard.domain.errors import quoted
from gpuyard.domain.validation import parse_model
from gpuyard.providers.instances.settings import InstanceSettings

# A container of these has no systemd, and so nothing that would end it by itself.
_WITHOUT_MACHINES = frozenset({"kubernetes", "k8s", "ssh", "slurm"})


class SkyPilotConfig(InstanceSettings):
    """SkyPilot, and the settings that all clouds have (`InstanceSettings`).

    - `python`: the interpreter in whose environment SkyPilot is installed.
    - `clouds`: the clouds to rent from (`aws`, `gcp`, `lambda`); unset, all that are
      enabled in SkyPilot.
    - `call_timeout_s`: how long a call to SkyPilot may take.
    """

    provider: ClassVar[str] = "skypilot"

    python: str
    clouds: tuple[str, ...] = ()
    poll_s: float = 20.0
    boot_timeout_s: float = 1800.0
    call_timeout_s: float = 300.0

    @field_validator("python")
    @classmethod
    def _is_program(cls, value: str) -> str:
        path = Path(value).expanduser()
        if not path.is_absolute():
            raise ValueError(
                f"{quoted(value)} is no absolute path; write that of the Python in"
                " whose environment SkyPilot is, such as /home/me/sky/bin/python"
            )
        return str(path)

    @field_validator("clouds")
    @classmethod
    def _are_clouds(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name.lower() in _WITHOUT_MACHINES:
                raise ValueError(
                    f"{quoted(name)} rents no machines; name clouds such as gcp, and"
                    " give gpuyard's own providers the others"
                )
        return tuple(name.lower() for name in value)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """InvalidInputError names a wrong or missing field."""
        return parse_model(cls, dict(config))
