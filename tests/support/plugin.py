"""Packages beside gpuyard: `pip install` as a user would, into a folder of the test's
own and without a network.
"""

from pathlib import Path


def plugin_environment(site: Path, *sources: Path) -> dict[str, str]:
    """With it, pip installs into `site`, and every Python finds what is there and what
    its editable packages hold.

    `sources`: their `src` folders, since Python reads no `.pth` file on PYTHONPATH.
    Nothing is fetched: the build backend is that of the environment the tests run in,
    and so is every dependency.
    """
    return {
        "PIP_TARGET": str(site),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # Switched off, this option of pip's means what it says: no isolation.
        "PIP_NO_BUILD_ISOLATION": "0",
        "PYTHONPATH": ":".join(map(str, (site, *sources))),
    }
