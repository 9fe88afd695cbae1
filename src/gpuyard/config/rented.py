"""The settings of the agent on a machine that gpuyard has rented."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gpuyard.config.sections import Period, SettingsSection, absolute


class RentedSettings(SettingsSection):
    """What the first boot of a rented machine tells its agent (see the guide on rented
    machines).

    In `heartbeat_file` the agent notes, on the boot clock, when the server last said
    something. It asks the metadata service of the cloud `spot_notices` every `look_s`
    whether the cloud takes the machine back; `metadata_url` is where that service is,
    if not at the cloud's own address.
    """

    heartbeat_file: Annotated[Path | None, AfterValidator(absolute)] = None
    spot_notices: Literal["aws", "alibaba"] | None = None
    metadata_url: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    look_s: Period = 5.0
