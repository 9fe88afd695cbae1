"""The settings of a shared instance."""

import os
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from gpuyard.config.sections import SettingsSection

# What sockaddr_un holds, and the NUL at its end.
_LONGEST = 107


def _address(path: Path) -> Path:
    if not path.is_absolute() or len(os.fsencode(path)) > _LONGEST:
        raise ValueError(
            f"{str(path)!r} is no absolute path of at most {_LONGEST} bytes; write"
            " /run/gpuyard/gpuyard.sock"
        )
    return path


class SharedSettings(SettingsSection):
    """A server for several users of this machine (see the guide on the shared
    workstation): it also listens at `socket`, where all members of `group` are signed
    in by what the kernel says of them. `account` is the one that the server runs under,
    so that members know it.

    Without `socket`, only the server's own user and root reach it.
    """

    socket: Annotated[Path, AfterValidator(_address)] | None = None
    group: str | None = Field(default=None, min_length=1)
    account: str = Field(default="root", min_length=1)

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.socket is None) != (self.group is None):
            missing = "group" if self.socket else "socket"
            raise ValueError(f"has no {missing}; give socket and group, or neither")
        return self
