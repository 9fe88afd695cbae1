"""An installed SkyPilot whose machines are played: each is a process that really joins."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.fake_cloud import FakeCloud, note_python
from tests.support.ports import free_port

_FAKE = Path(__file__).with_name("fake_sky")
_ROOT = Path(__file__).parent.parent.parent


class PlayedSkyPilot:
    """`cloud` has the machines; `python` is the interpreter with SkyPilot."""

    def __init__(self, folder: Path) -> None:
        self.cloud = FakeCloud(folder)
        note_python(folder)
        self.python = folder / "python-with-skypilot"
        words = ["env", f"PYTHONPATH={_FAKE}:{_ROOT}", f"FAKE_SKY={folder}"]
        command = shlex.join([*words, sys.executable])
        self.python.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        self.python.chmod(0o755)

    def settings(self, **more: Any) -> dict[str, Any]:
        """What `[providers.skypilot]` says in order to come here."""
        return {"python": str(self.python), "poll_s": 0.2, "sweep_s": 1, **more}

    def stop(self, machine: str) -> None:
        """Let the machine stop without being deleted, as one that powers off."""
        (self.cloud.folder / f"stopped-{machine}").touch()


@contextmanager
def playing_skypilot(folder: Path) -> Iterator[PlayedSkyPilot]:
    """SkyPilot; `folder` is for its machines."""
    played = PlayedSkyPilot(folder)
    try:
        yield played
    finally:
        played.cloud.close_all()


def skypilot_environment(played: PlayedSkyPilot, **settings: str) -> dict[str, str]:
    """The environment of an instance that rents there. `settings`: more of
    `[providers.skypilot]`.
    """
    values = {"python": str(played.python), "poll_s": "0.2", "sweep_s": "1", **settings}
    section = {
        f"GPUYARD_PROVIDERS__SKYPILOT__{name.upper()}": value
        for name, value in values.items()
    }
    return {
        "GPUYARD_SERVER__AGENTS_LISTEN": f"127.0.0.1:{free_port(2)}",
        **section,
    }
