"""Remembers which file holds the settings of a home, so that every later server and
command reads the same one.

Standard library only.
"""

from pathlib import Path

from gpuyard.config.paths import Home

OWN_FILE = "default"
"""In place of a file: the home's own `gpuyard.toml`."""


def remember_settings(home: Home, file: Path | None) -> None:
    """Read the settings of `home` from `file` from now on; None: from its own."""
    if file is None:
        home.settings_name.unlink(missing_ok=True)
        return
    draft = home.settings_name.with_suffix(".new")
    draft.write_text(f"{file.absolute()}\n")
    draft.rename(home.settings_name)
