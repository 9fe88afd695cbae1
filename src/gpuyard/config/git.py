"""The section `git` of the settings: from where the page takes code."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from gpuyard.config.sections import SettingsSection, absolute


class GitSettings(SettingsSection):
    """Of a repository on the public internet, and on the `internal_hosts`, the server
    fetches a commit for who submits from the page (see the guide on git). `ca_file`
    holds the certificates of these hosts, if the system has not.
    """

    internal_hosts: tuple[str, ...] = ()
    ca_file: Annotated[Path | None, AfterValidator(absolute)] = None
