"""An environment with real trackers, built once (a minute) and kept in the cache."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.environments import make_python

PACKAGES = ("tensorboard", "tensorboardX", "wandb", "mlflow")


def make_trackers_python() -> Path:
    """The interpreter of the environment, which is made if it is not there."""
    return make_python("trackers", PACKAGES)


def read(url: str, body: Any = None) -> Any:
    """The JSON that a server answers, to `body` if that is given; None while it does
    not.
    """
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, content, headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None
